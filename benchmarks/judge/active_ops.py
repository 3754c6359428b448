"""Rules of choice tested without a training: 76 policies, 5,000 returns of each, and their fitted values.

    python benchmarks/judge/active_ops.py --data DIR [--policies 50] [--repetitions 1000]

DIR is the folder `data` of github.com/google-deepmind/active_ops (Konyushkova et al. 2021, arXiv:2106.10251):
agents for cart-pole swing-up from pixels. Fitted values are all that is known before anything is tried out;
then a budget of episodes may be played. Which policy does each rule take, and how far is its true mean (of
5,000 returns) from the best, as a share of best minus worst? As in the paper, 50 of the 76 are drawn for
every repetition.

- highest fitted value; or any policy, which is what chance gives
- episodes shared by all: highest mean, or highest lower end of its 90 % interval
- both, as the judge puts two methods together: weighed by one over the widths of their intervals. That of the
  fitted values is what they were off by where episodes were played, after a line through both
- the first five, or ten, by fitted values share all episodes: highest mean; and weighed as above
"""

from __future__ import annotations

import argparse
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from measures import Float64Array, measures, print_rows

from rl_training.judging.verdict import interval, weighted

CONFIDENCE = 0.9
ARRAYS = {
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}


class ArraysOnly(pickle.Unpickler):
    """The published files are pickles; nothing but numbers and arrays is read from them."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ARRAYS:
            raise SystemExit(f"{module}.{name} in a file that should hold arrays: not read")
        return super().find_class(module, name)


def read(folder: Path) -> tuple[Float64Array, Float64Array]:
    """Fitted values `[policies]` and returns `[policies, 5000]`."""
    found = []
    for name in ("ope_values", "full_reward_samples"):
        with (folder / f"{name}.pkl").open("rb") as file:
            found.append(ArraysOnly(file).load())
    values, returns = found
    names = sorted(values)
    return np.array([values[each] for each in names]), np.stack([returns[each] for each in names]).astype(
        np.float64
    )


def means_of(fitted: Float64Array, played: Float64Array) -> Float64Array:
    return np.asarray(played.mean(1))


def lower_ends(fitted: Float64Array, played: Float64Array) -> Float64Array:
    return np.array([interval(each, CONFIDENCE, of_mean=True).low for each in played])


def both(fitted: Float64Array, played: Float64Array) -> Float64Array:
    """Fitted values, put on the scale of what was played, and this, by their widths."""
    means = played.mean(1)
    slope, level = np.polyfit(fitted, means, 1)
    on_scale = level + max(slope, 0.0) * fitted
    off = np.concatenate([on_scale - means, means - on_scale])  # around nothing
    width = interval(off, CONFIDENCE)
    assert width.low is not None and width.high is not None
    found = []
    for value, each in zip(on_scale, played, strict=True):
        own = interval(each, CONFIDENCE, of_mean=True)
        other = type(own)(value, value + width.low, value + width.high)
        found.append(weighted(own, other))
    return np.array(found)


RULES: dict[str, Callable[[Float64Array, Float64Array], Float64Array]] = {
    "mean": means_of,
    "lower end": lower_ends,
    "both": both,
}
SHARED_BY = {"all": None, "first 10": 10, "first 5": 5}


def chosen(fitted: Float64Array, returns: Float64Array, each: int, rule: str, draws: Any) -> int:
    played = np.stack([draws.choice(own, each, replace=False) for own in returns])
    return int(np.argmax(RULES[rule](fitted, played)))


def regrets(
    fitted: Float64Array, returns: Float64Array, episodes: int, policies: int, repetitions: int
) -> dict[str, float]:
    """Mean regret of every rule with so many episodes in all; one policy's interval needs two."""
    draws, found = np.random.default_rng(0), dict[str, list[float]]()
    truth = returns.mean(1)
    for _ in range(repetitions):
        drawn = draws.choice(len(truth), policies, replace=False)
        true = truth[drawn]

        def add(name: str, place: int, true: Float64Array = true) -> None:
            found.setdefault(name, []).append(float((true.max() - true[place]) / np.ptp(true)))

        order = np.argsort(-fitted[drawn])
        add("any", int(draws.integers(policies)))
        add("fitted values alone", int(order[0]))
        for shared, first in SHARED_BY.items():
            some = order[:first]
            each = episodes // len(some)
            for rule in RULES if each >= 2 else ():
                own = drawn[some]
                add(f"{rule}, {shared}", int(some[chosen(fitted[own], returns[own], each, rule, draws)]))
    return {name: float(np.mean(values)) for name, values in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True, help="folder that holds the .pkl files")
    parser.add_argument("--policies", type=int, default=50)
    parser.add_argument("--repetitions", type=int, default=1000)
    parser.add_argument("--episodes", type=int, nargs="+", default=[100, 250, 500, 1000])
    options = parser.parse_args()
    fitted, returns = read(options.data)
    print_rows([{"all policies": len(fitted), **measures(fitted, returns.mean(1))}])
    tables = {
        count: regrets(fitted, returns, count, options.policies, options.repetitions)
        for count in options.episodes
    }
    names = dict.fromkeys(name for table in tables.values() for name in table)
    print_rows(
        [
            {"rule": name, **{f"{count} episodes": table.get(name, "–") for count, table in tables.items()}}
            for name in names
        ]
    )


if __name__ == "__main__":
    main()
