"""Are silently wrong logs noticed, and clean ones left alone? On small plants, by the checks of a judgement.

    python benchmarks/judge/hidden.py [--seeds 0 1 2 3 4] [--logs tank …]

Wrong are: two plants in one log, a load (or a set point) that operators answer to and that is not observed,
trips that no column marks, and a dead time whose past is not observed. Everything is fitted as in a
judgement; policies play no part in these checks.

Beside every log lie columns that no observation holds: what is hidden, where that is a column, a batch that
says nothing, and noise. Is the first named, and none of the others?
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from plants import Plant, arm, cascade, delayed, reactor, tank, two_in_one

from rl_training.data import DataInfo, TransitionDataset
from rl_training.data.read import UnusedColumn
from rl_training.data.rows import as_array
from rl_training.judging.hidden import is_something_hidden, unmarked_ends
from rl_training.judging.log import JudgedLog
from rl_training.judging.model import fit_dynamics
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import Check

Log = tuple[TransitionDataset, tuple[UnusedColumn, ...]]
Logged = Callable[[int], Log]
HIDDEN = "what is hidden"


def whole(plant: Plant) -> Plant:
    """A plant whose log holds all of its state; operators see what they saw."""
    return replace(plant, read=lambda state: state, hand_sees=plant.hand_sees or plant.read)


def hiding(plant: Plant, column: int, seed: int) -> Log:
    """A log without one of the columns, which lies beside it among others."""
    data, _ = plant.log(seed)
    seen = [as_array(values) for values in (data.obs, data.next_obs)]
    kept = [np.delete(values, column, axis=1) for values in seen]
    cut = TransitionDataset(
        kept[0],
        data.actions,
        data.rewards,
        kept[1],
        data.dones,
        truncations=data.truncations,
        info=DataInfo(source=plant.name),
    )
    return cut, (UnusedColumn(HIDDEN, seen[0][:, column]), *others(cut, seed))


def plain(data: TransitionDataset, seed: int) -> Log:
    return data, others(data, seed)


def others(data: TransitionDataset, seed: int) -> tuple[UnusedColumn, ...]:
    """What explains nothing: one of five batches an episode, and noise."""
    draws, ends = np.random.default_rng([seed, 4]), data.episode_ends()
    batches = draws.integers(0, 5, int(ends.sum()))
    return (
        UnusedColumn("batch", batches[np.cumsum(ends) - ends].astype(np.float64)),
        UnusedColumn("noise", draws.normal(size=len(data))),
    )


WRONG: dict[str, Logged] = {
    "tank: two in one": lambda seed: hiding(whole(two_in_one(tank())), -1, seed),
    "cascade: two in one": lambda seed: hiding(whole(two_in_one(cascade())), -1, seed),
    "arm: two in one": lambda seed: hiding(whole(two_in_one(arm())), -1, seed),
    "tank: load not observed": lambda seed: hiding(tank(), 2, seed),
    "cascade: set point not observed": lambda seed: hiding(cascade(), 2, seed),
    "reactor: trips not marked": lambda seed: plain(reactor().log(seed, mark_ends=False)[0], seed),
    "tank: dead time of 3 rows": lambda seed: plain(delayed(tank()).log(seed)[0], seed),
}
CLEAN: dict[str, Logged] = {
    "tank": lambda seed: plain(tank().log(seed)[0], seed),
    "cascade": lambda seed: plain(cascade().log(seed)[0], seed),
    "reactor": lambda seed: plain(reactor().log(seed)[0], seed),
    "arm": lambda seed: plain(arm().log(seed)[0], seed),
}


def said(log: Log, seed: int, updates: int) -> dict[str, Check]:
    """What each check says of a log."""
    data, unused = log
    config = JudgeConfig.build({"seed": seed, "model_updates": updates, "compile": False})
    judged = JudgedLog.from_dataset(data, config.gamma)
    dynamics = fit_dynamics(judged, config, lambda *told: None)
    name_of = data.info.name_of
    hidden = is_something_hidden(judged, dynamics, name_of, lambda: unused)
    return {"unmarked_ends": unmarked_ends(judged, name_of), **hidden}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--logs", nargs="+", default=[*WRONG, *CLEAN], choices=[*WRONG, *CLEAN])
    parser.add_argument("--updates", type=int, default=JudgeConfig().model_updates)
    options = parser.parse_args()
    torch.set_num_threads(1)
    wrong, nameable, named, misnamed = {True: 0, False: 0}, 0, 0, 0
    for name in options.logs:
        for seed in options.seeds:
            log = (WRONG | CLEAN)[name](seed)
            checks = said(log, seed, options.updates)
            told = {each: check for each, check in checks.items() if check.outcome != "passed"}
            wrong[name in WRONG] += bool(told) != (name in WRONG)
            reasons = " ".join(check.reason for check in told.values())
            columns = {each.name for each in log[1] if f"The column {each.name}," in reasons}
            nameable += log[1][0].name == HIDDEN
            named += HIDDEN in columns
            misnamed += bool(columns - {HIDDEN})
            words = [f"{each} {check.outcome}" for each, check in told.items()]
            words += [f"named: {', '.join(sorted(columns))}"] if columns else []
            print(f"{name}, seed {seed}: {', '.join(words) or 'nothing'}", flush=True)
    print(f"wrong logs that passed: {wrong[True]}; clean ones that did not: {wrong[False]}")
    print(f"columns that explain it: {named} of {nameable} named; logs with another named: {misnamed}")


if __name__ == "__main__":
    main()
