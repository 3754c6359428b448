"""Which of a dozen trainings do I take? The judge's choice next to other ways without an environment.

    python benchmarks/judge/selection.py --data DIR [--set pendulum-random …] [--seed 10] [--out DIR]

On each data set twelve settings are trained and judged by the log alone. Every way of choosing is scored by
what its choice truly earns, between the worst of the twelve (0) and the best (1): the judge's first choice,
the largest value of the training's own critic, the smallest error of imitation, and a choice at random.
Policies, true values and judgements are kept, so the command can be stopped and repeated.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import policies
import torch
from measures import measures, print_rows
from policies import GAMMA, DataSet, Recipe, chosen, snapshot, train, true_value

from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.judging import judge, trained_critic
from rl_training.policies.files import load_policy
from rl_training.runs.directory import write_json_atomic

STEPS = (2000,)
SETTINGS = {
    **{f"td3_bc alpha {a:g}": Recipe("td3_bc", STEPS, (("alpha", a),)) for a in (0.3, 1, 2.5, 10, 40)},
    "td3_bc gamma 0.9": Recipe("td3_bc", STEPS, (("gamma", 0.9),)),
    **{
        f"iql expectile {e:g} beta {b:g}": Recipe("iql", STEPS, (("expectile", e), ("beta", b)))
        for e, b in ((0.6, 1.0), (0.7, 3.0), (0.9, 3.0), (0.9, 10.0))
    },
    "awac": Recipe("awac", STEPS),
    "bc": Recipe("bc", STEPS),
}


def candidates(data_set: DataSet, options: argparse.Namespace, folder: Path) -> dict[str, Path]:
    """The checkpoint of every setting, trained where it is missing."""
    found = {}
    for name, whole in SETTINGS.items():
        recipe, place = data_set.cut(whole), folder / name.replace(" ", "-")
        train(recipe, options.data / data_set.file, data_set.env_id, options.seed, place)
        found[name] = snapshot(place, recipe.steps[-1])
    return found


def true_values(paths: dict[str, Path], data_set: DataSet, file: Path, seed: int) -> dict[str, float]:
    values: dict[str, float] = json.loads(file.read_text()) if file.is_file() else {}
    for name, path in paths.items():
        if name not in values:
            values[name] = true_value(load_policy(path), data_set, seed=7000 + seed)["value"]
            file.write_text(json.dumps(values, indent=1))
            print(f"{data_set.name} {name}: {values[name]:.1f}", flush=True)
    return values


def judged(
    paths: dict[str, Path], log: TransitionDataset, file: Path, options: argparse.Namespace
) -> dict[str, Any]:
    """What the judge says of each setting, and the order in which it would take them."""
    if file.is_file():
        known: dict[str, Any] = json.loads(file.read_text())
        return known
    opened = {name: load_policy(path) for name, path in paths.items()}
    settings = {"importance": False, "checkpoints": file.with_suffix(".fits"), **json.loads(options.settings)}
    result = judge(opened, log, gamma=GAMMA, seed=options.seed, **settings)
    found = {
        "order": [each.name for each in result.ranking()],
        "tied": [each.name for each in result.ties()],
        "values": {each.name: each.value for each in result.policies},
        "verdicts": {each.name: each.verdict for each in result.policies},
        "seconds": result.seconds,
    }
    write_json_atomic(file, found)
    return found


def critic_value(path: Path, first: Any) -> float:
    """The value of the first states by the critic of the training; without one, the least."""
    critic = trained_critic(path)
    if critic is None:
        return -np.inf
    return float(critic.values(first, critic.policy.predict(first)).mean())


def imitation_error(path: Path, log: TransitionDataset) -> float:
    return float(np.square(load_policy(path).predict(log.obs.numpy()) - log.actions.numpy()).mean())


def study(data_set: DataSet, options: argparse.Namespace) -> list[dict[str, Any]]:
    folder = options.out / data_set.name
    folder.mkdir(parents=True, exist_ok=True)
    paths = candidates(data_set, options, folder)
    truth = true_values(paths, data_set, folder / "truth.json", options.seed)
    log = load_transition_dataset("hdf5", dataset_path=options.data / data_set.file)
    told = judged(paths, log, folder / f"judgement{options.suffix}.json", options)
    first = log.obs.numpy()[np.flatnonzero(np.r_[True, log.episode_ends()[:-1]])]
    hopes = {name: critic_value(path, first) for name, path in paths.items()}
    errors = {name: imitation_error(path, log) for name, path in paths.items()}
    worst, best = min(truth.values()), max(truth.values())

    def share(name: str) -> float:
        return (truth[name] - worst) / (best - worst)

    choices = {
        "judge's first choice": told["order"][0],
        "training critic's value": max(hopes, key=lambda name: hopes[name]),
        "imitation error": min(errors, key=lambda name: errors[name]),
    }
    rows = [
        {"data": data_set.name, "by": way, "choice": choice, "share of best": share(choice)}
        for way, choice in choices.items()
    ]
    random = float(np.mean([share(name) for name in truth]))
    rows.append({"data": data_set.name, "by": "at random", "choice": "–", "share of best": random})
    values = np.array([told["values"][name] for name in truth])
    for name in sorted(truth, key=lambda each: -truth[each]):
        print(
            f"  {name:26s} true {truth[name]:8.1f}  judge {told['values'][name]:8.1f} "
            f"{told['verdicts'][name]:17s} critic {hopes[name]:10.1f}  imitation {errors[name]:.3f}"
        )
    print(f"{data_set.name}: {measures(values, np.array(list(truth.values())))}")
    print(f"  tied with the judge's first choice: {', '.join(told['tied'])}")
    return rows


def main() -> None:
    parser = policies.parser(__doc__, "selection", sets=("pendulum-random", "hopper-medium-replay"))
    parser.add_argument("--seed", type=int, default=10)
    parser.add_argument("--settings", default="{}", help="settings of the judgement, as JSON")
    parser.add_argument("--suffix", default="", help="keeps judgements of other settings apart")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_rows([row for data_set in chosen(options) for row in study(data_set, options)])


if __name__ == "__main__":
    main()
