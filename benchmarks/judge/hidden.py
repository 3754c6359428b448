"""Are silently wrong logs noticed, and clean ones left alone? On small plants, by the checks of a judgement.

    python benchmarks/judge/hidden.py [--seeds 0 1 2 3 4] [--logs tank …]

Wrong are: two plants in one log, a load (or a set point) that operators answer to and that is not logged,
trips that no column marks, and a dead time whose past is not observed. Everything is fitted as in a
judgement; policies play no part in these checks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import torch
from plants import arm, cascade, delayed, reactor, tank, two_in_one, without

from rl_training.data import TransitionDataset
from rl_training.judging.hidden import is_something_hidden, unmarked_ends
from rl_training.judging.log import JudgedLog
from rl_training.judging.model import fit_dynamics
from rl_training.judging.settings import JudgeConfig

Logged = Callable[[int], TransitionDataset]

WRONG: dict[str, Logged] = {
    "tank: two in one": lambda seed: two_in_one(tank()).log(seed)[0],
    "cascade: two in one": lambda seed: two_in_one(cascade()).log(seed)[0],
    "arm: two in one": lambda seed: two_in_one(arm()).log(seed)[0],
    "tank: load not logged": lambda seed: without(tank(), 2).log(seed)[0],
    "cascade: set point not logged": lambda seed: without(cascade(), 2).log(seed)[0],
    "reactor: trips not marked": lambda seed: reactor().log(seed, mark_ends=False)[0],
    "tank: dead time of 3 rows": lambda seed: delayed(tank()).log(seed)[0],
}
CLEAN: dict[str, Logged] = {
    "tank": lambda seed: tank().log(seed)[0],
    "cascade": lambda seed: cascade().log(seed)[0],
    "reactor": lambda seed: reactor().log(seed)[0],
    "arm": lambda seed: arm().log(seed)[0],
}


def said(data: TransitionDataset, seed: int, updates: int) -> dict[str, str]:
    """What each check says of a log."""
    config = JudgeConfig.build({"seed": seed, "model_updates": updates, "compile": False})
    log = JudgedLog.from_dataset(data, config.gamma)
    dynamics = fit_dynamics(log, config, lambda *told: None)
    name_of = data.info.name_of
    found = {"unmarked_ends": unmarked_ends(log, name_of), **is_something_hidden(log, dynamics, name_of)}
    return {name: check.outcome for name, check in found.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--logs", nargs="+", default=[*WRONG, *CLEAN], choices=[*WRONG, *CLEAN])
    parser.add_argument("--updates", type=int, default=JudgeConfig().model_updates)
    options = parser.parse_args()
    torch.set_num_threads(1)
    wrong = {True: 0, False: 0}
    for name in options.logs:
        for seed in options.seeds:
            outcomes = said((WRONG | CLEAN)[name](seed), seed, options.updates)
            noticed = any(outcome != "passed" for outcome in outcomes.values())
            wrong[name in WRONG] += noticed != (name in WRONG)
            told = ", ".join(
                f"{check} {outcome}" for check, outcome in outcomes.items() if outcome != "passed"
            )
            print(f"{name}, seed {seed}: {told or 'nothing'}", flush=True)
    print(f"wrong logs that passed: {wrong[True]}; clean ones that did not: {wrong[False]}")


if __name__ == "__main__":
    main()
