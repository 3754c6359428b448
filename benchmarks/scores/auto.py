"""What `rl-training auto` recommends on plants whose truth can be simulated, beside what else could be had.

    python benchmarks/scores/auto.py --minutes 3 --out DIR
    python benchmarks/scores/auto.py --problems tank arm --seeds 0 1 2 --out DIR
    python benchmarks/scores/auto.py --problems --planted random-rewards two-plants few-episodes --out DIR
    python benchmarks/scores/auto.py --problems four-tanks motor --environment PLANTS --out DIR

The last line asks public simulators, installed by `benchmarks/judge/public_plants.py --environment PLANTS`.

Every search sees a CSV with the names of its operators and nothing else. Afterwards the plant is asked what
the exported policy, guard and all, the candidates, the operators and the logged mixture truly earn. The share
of the possible gain is (recommended - mixture) / (best known - mixture); the best known is the best of all
candidates, of the plant's other controllers and of a small network that was searched on the plant itself.
`always IQL`, `TD3+BC` and `LION at dial 0.5` are candidates of the same search. Planted logs can carry no
policy: there, any recommendation is an error. What is done is kept in `--out`; `--table` prints it.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "judge"))
from plants import PLANTS, Array, Control, Draws, Plant, never, two_in_one, write_log
from public_plants import public_plants

import rl_training
from rl_training.core.checkpoints import checkpoint_path
from rl_training.core.errors import DataError
from rl_training.core.files import write_json_atomic
from rl_training.recommend import auto, portfolio
from rl_training.recommend.portfolio import Recipe

GAMMA, TRUTH_SEED = 0.99, 1
ALWAYS = {"IQL": "iql", "TD3+BC": "td3_bc", "LION at dial 0.5": "lion dial 0.5"}
QUICK: Mapping[str, Any] = {"updates": 2, "model_updates": 2, "members": 2, "importance": False}


def pendulum() -> Plant:
    """Gymnasium's Pendulum-v1, swung up by controllers of energy that are more or less well tuned."""

    def start(runs: int, draws: Draws) -> Array:
        return draws.uniform((-np.pi, -1.0), (np.pi, 1.0), (runs, 2))

    def step(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, Any]:
        angle, speed = state.T
        push = actions[:, 0]
        around = (angle + np.pi) % (2.0 * np.pi) - np.pi
        reward = -(around**2 + 0.1 * speed**2 + 0.001 * push**2)
        speed = np.clip(speed + 0.05 * (15.0 * np.sin(angle) + 3.0 * push), -8.0, 8.0)
        return np.stack([angle + 0.05 * speed, speed], axis=1), reward, never(state)

    def made(pump: float, hold: float, brake: float) -> Control:
        def control(seen: Array) -> Array:
            cosine, sine, speed = seen.T
            missing = 5.0 - (speed**2 / 6.0 + 5.0 * cosine)
            swing = pump * missing * np.where(speed < 0.0, -1.0, 1.0)
            upright = -hold * np.arctan2(sine, cosine) - brake * speed
            return np.where(cosine > 0.8, upright, swing)[:, None]

        return control

    return Plant(
        "pendulum",
        start,
        step,
        (-2.0,),
        (2.0,),
        {
            "early": (made(1.0, 10.0, 2.0), 0.1),
            "late": (made(0.1, 8.0, 1.0), 0.15),
            "new": (made(0.3, 2.0, 0.0), 0.3),
        },
        {"steady": made(2.0, 12.0, 3.0), "nothing": lambda seen: np.zeros((len(seen), 1))},
        length=200,
        read=lambda state: np.stack([np.cos(state[:, 0]), np.sin(state[:, 0]), state[:, 1]], axis=1),
    )


PROBLEMS: Mapping[str, Callable[[], Plant]] = {**PLANTS, "pendulum": pendulum}


def random_rewards(plant: Plant) -> Plant:
    """Nothing that is done has to do with what is earned."""

    def step(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, Any]:
        after, rewards, over = plant.step(state, actions, draws)
        return after, draws.normal(size=len(rewards)), over

    return replace(plant, step=step)


PLANTED: Mapping[str, Callable[[], Plant]] = {
    "random-rewards": lambda: random_rewards(PLANTS["tank"]()),
    "few-episodes": lambda: replace(PLANTS["tank"](), episodes=8),
    "two-plants": lambda: two_in_one(PLANTS["cascade"]()),
}


# ---- the truth


def true_value(plant: Plant, policy: Any, *, guard: bool = False) -> float:
    return plant.worth(policy, GAMMA, TRUTH_SEED, guard=guard)


def true_operators(plant: Plant) -> dict[str, float]:
    acting = plant.operators.items()
    return {name: plant.true_value(who, GAMMA, TRUTH_SEED, hand=name) for name, (who, _) in acting}


def best_controller(plant: Plant, rounds: int) -> float:
    """The best of the plant's other controllers and of a small network, searched by the cross-entropy method
    on the plant itself: more than any log can teach.
    """
    known = {**plant.others, **{name: control for name, (control, _) in plant.operators.items()}}
    best = max(plant.true_value(control, GAMMA, TRUTH_SEED) for control in known.values())
    draws = np.random.default_rng(0)
    seen = plant.read(plant.start(1000, draws))
    center, spread = seen.mean(0), seen.std(0) + 1e-6
    widths = (seen.shape[1], 8, len(plant.low))
    sizes = [(widths[i] + 1) * widths[i + 1] for i in range(2)]
    mean, deviation = np.zeros(sum(sizes)), np.full(sum(sizes), 0.7)
    for _ in range(rounds):
        several = mean + deviation * draws.normal(size=(48, len(mean)))
        values = earned(plant, several, sizes, widths, center, spread)
        chosen = several[np.argsort(-values)[:8]]
        mean, deviation = chosen.mean(0), chosen.std(0) + 0.02
    control = partial(network, mean[None], sizes, widths, center, spread)
    return max(best, plant.true_value(lambda seen: control(seen[None])[0], GAMMA, TRUTH_SEED))


def network(
    weights: Array, sizes: Sequence[int], widths: Sequence[int], center: Array, spread: Array, seen: Array
) -> Array:
    """Actions in shares of the range, `[networks, runs, A]`, for readings `[networks, runs, O]`."""
    values = (seen - center) / spread
    for place, part in enumerate(np.split(weights, np.cumsum(sizes)[:-1], axis=1)):
        shaped = part.reshape(len(part), widths[place] + 1, widths[place + 1])
        values = np.tanh(values @ shaped[:, 1:] + shaped[:, :1])
    return values


def earned(plant: Plant, weights: Array, sizes: Any, widths: Any, center: Array, spread: Array) -> Array:
    """Discounted returns of many networks, each on the same 40 runs."""
    draws, runs = np.random.default_rng(5), 40
    state = np.tile(plant.start(runs, draws), (len(weights), 1))
    alive, total, weight = np.ones(len(state)), np.zeros(len(state)), 1.0
    low, high = np.array(plant.low), np.array(plant.high)
    for _ in range(300):
        seen = plant.read(state).reshape(len(weights), runs, -1)
        units = network(weights, sizes, widths, center, spread, seen).reshape(len(state), -1)
        state, rewards, over = plant.step(state, low + (units + 1.0) / 2.0 * (high - low), draws)
        total += weight * alive * rewards
        alive, weight = alive * ~over, weight * GAMMA
    return total.reshape(len(weights), runs).mean(axis=1)


# ---- one search


def processor_seconds() -> float:
    """Of this process and all that it waited for."""
    own, children = (resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return own.ru_utime + own.ru_stime + children.ru_utime + children.ru_stime


def candidate(folder: Path, name: str) -> Any:
    """The policy of a candidate by its name, such as `lion dial 0.5` or `iql at 4000`."""
    recipe, _, position = name.partition(" ")
    (run,) = (each.parent for each in (folder / "runs" / recipe).glob("*/checkpoints"))
    what, _, number = position.partition(" ")
    if what == "at":
        return rl_training.load_policy(checkpoint_path(run, int(number)))
    policy = rl_training.load_policy(run)
    return policy.with_inputs(dial=float(number)) if what == "dial" else policy


def searched(plant: Plant, name: str, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """One search and the truth about it, made or found."""
    folder = options.out / f"{name}-s{seed}"
    file = folder / "truth.json"
    if file.is_file():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    folder.mkdir(parents=True, exist_ok=True)
    columns = write_log(plant, folder / "log.csv", seed)
    fields = {"action_low": list(plant.low), "action_high": list(plant.high)}
    began = processor_seconds()
    try:
        told = rl_training.auto(
            folder / "log.csv",
            columns=columns,
            fields=fields,
            out=folder / "auto",
            gamma=GAMMA,
            minutes=options.minutes,
            seed=seed,
            workers=1,
            say=print,
        )
    except DataError as problem:
        found = {"name": name, "seed": seed, "recommended": None, "said": str(problem), "candidates": {}}
        write_json_atomic(file, found)
        return found
    seconds = processor_seconds() - began
    names = [each.name for each in told.judgement.policies]
    chosen = told.choice.name
    shipped = None if told.policy is None else rl_training.load_policy(told.policy)
    found = {
        "name": name,
        "seed": seed,
        "recommended": chosen,
        "said": told.sentence,
        "cpu_seconds": seconds,
        "value": None if shipped is None else true_value(plant, shipped, guard=True),
        "candidates": {each: true_value(plant, candidate(folder / "auto", each)) for each in names},
        "verdicts": {each.name: each.verdict for each in told.judgement.policies},
        "order": [each.name for each in told.judgement.ranking()],
        "operators": true_operators(plant),
    }
    write_json_atomic(file, found)
    return found


# ---- tables


def best_of(values: Mapping[str, float]) -> tuple[str, float]:
    return max(values.items(), key=lambda pair: pair[1])


def mixture(found: Mapping[str, Any]) -> float:
    """The operators took equal turns."""
    return float(np.mean(list(found["operators"].values())))


def row(found: Mapping[str, Any], best: float) -> dict[str, Any]:
    """The numbers of one search."""
    own, operator = mixture(found), best_of(found["operators"])[1]
    value = own if found["value"] is None else found["value"]

    def share(earned: float) -> float:
        return (earned - own) / (best - own)

    always = {f"always {name}": share(found["candidates"][key]) for name, key in ALWAYS.items()
              if key in found["candidates"]}  # fmt: skip
    return {
        "problem": f"{found['name']} {found['seed']}",
        "mixture": own,
        "best operator": operator,
        "recommended": found["recommended"] or "no policy",
        "value": value,
        "best candidate": " = ".join(f"{part}" for part in best_of(found["candidates"])[:1]),
        "its value": best_of(found["candidates"])[1],
        "best known": best,
        "share": share(value),
        **always,
        "CPU min": found["cpu_seconds"] / 60.0,
    }


def print_table(rows: Sequence[Mapping[str, Any]]) -> None:
    names = list(rows[0])
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for each in rows:
        cells = (f"{each[n]:.2f}" if isinstance(each.get(n), float) else str(each.get(n, "–")) for n in names)
        print("| " + " | ".join(cells) + " |", flush=True)


def print_summary(rows: Sequence[Mapping[str, Any]]) -> None:
    """What was asked for, over all searches."""
    shares = [name for name in rows[0] if name == "share" or name.startswith("always")]
    for name in shares:
        values = [each[name] for each in rows if name in each]
        label = "recommended" if name == "share" else name
        print(f"{label}: mean share of the possible gain {np.mean(values):.2f}, least {np.min(values):.2f}")
    above = sum(each["value"] > each["best operator"] for each in rows)
    below = sum(each["value"] < each["mixture"] for each in rows)
    print(f"above the best operator {above} of {len(rows)}, below the mixture {below}")


def all_found(options: argparse.Namespace) -> Iterator[tuple[Plant, dict[str, Any]]]:
    """Problem by problem; with `--table` only what is there."""
    for seed in options.seeds:
        for name in (*options.problems, *options.planted):
            plant = (known_problems(options) | PLANTED)[name]()
            plant = replace(plant, runs=20, steps=20) if options.quick else plant
            if options.table and not (options.out / f"{name}-s{seed}" / "truth.json").is_file():
                continue
            yield plant, searched(plant, name, seed, options)


def known_problems(options: argparse.Namespace) -> dict[str, Callable[[], Plant]]:
    public = public_plants(options.environment) if options.environment else {}
    return {**PROBLEMS, **public}


def best_known(plant: Plant, options: argparse.Namespace) -> float:
    """Made once for a plant."""
    file = options.out / f"best-{plant.name}.json"
    if not file.is_file():
        rounds = options.rounds if plant.name in PROBLEMS else 0  # a public simulator is too slow for it
        write_json_atomic(file, {"value": best_controller(plant, rounds)})
    return float(json.loads(file.read_text())["value"])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--problems", nargs="*", default=list(PROBLEMS))
    parser.add_argument("--environment", type=Path, help="where public simulators are installed")
    parser.add_argument("--planted", nargs="*", choices=list(PLANTED), default=[])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--minutes", type=float, default=3.0, help="as of auto")
    parser.add_argument("--rounds", type=int, default=40, help="of the search on the plant itself")
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results" / "auto")
    parser.add_argument("--table", action="store_true", help="print what is there, search nothing")
    parser.add_argument(
        "--quick", action="store_true", help="one short training, a light judge: shows that everything runs"
    )
    options = parser.parse_args()
    if unknown := set(options.problems) - set(known_problems(options)):
        parser.error(
            f"no problem is called {', '.join(sorted(unknown))}; one of {list(known_problems(options))}"
        )
    torch.set_num_threads(1)
    with ExitStack() as changes:
        if options.quick:
            recipes = (Recipe("bc", "bc", {}, updates=2),)
            changes.enter_context(patch.object(portfolio, "CONTINUOUS", recipes))
            quick = partial(auto.run_judge.judge, **QUICK)
            changes.enter_context(patch.object(auto.run_judge, "judge", quick))
        pairs = [(plant, found) for plant, found in all_found(options)]
    good = [(plant, found) for plant, found in pairs if found["name"] not in PLANTED]
    best = {
        plant.name: max(
            best_known(plant, options),
            *(best_of(found["candidates"])[1] for other, found in good if other.name == plant.name),
        )
        for plant, _ in good
    }
    rows = [row(found, best[plant.name]) for plant, found in good]
    if rows:
        print_table(rows)
        print_summary(rows)
    for _, found in pairs:
        if found["name"] in PLANTED:
            print(f"planted {found['name']} {found['seed']}: {found['said']}")


if __name__ == "__main__":
    main()
