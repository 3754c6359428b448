"""OGBench NPZ: `terminals` marks the last row of a trajectory; a true termination is `masks == 0`.

A generic reader gets both wrong without a word. The last row of a trajectory has no successor (compact files
store no `next_observations`) and is left out, as in OGBench's own loader; its reward still counts.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from rl_training.config.data import DatasetSource
from rl_training.data.formats import Format
from rl_training.data.formats.npz import npz_names, open_npz
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import Target, as_flags, file_of

OBSERVATIONS, ACTIONS, ENDS, MASKS, REWARDS = "observations", "actions", "terminals", "masks", "rewards"


def read_ogbench(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read trajectories; without `rewards` (goal-conditioned files) only behaviour cloning can use them."""
    path = file_of(source)
    with open_npz(path, target) as archive:
        names = archive.names
        archive.require((OBSERVATIONS, ACTIONS, ENDS))
        wanted = {"obs": OBSERVATIONS, "actions": ACTIONS, "episode_ends": ENDS, "rewards": REWARDS}
        wanted |= {"next_obs": "next_observations", "terminated": MASKS}
        columns = archive.columns({field: name for field, name in wanted.items() if name in names})
    rows = len(columns["episode_ends"])
    ends = as_flags(ENDS, columns["episode_ends"], str(path))
    alive = as_flags(MASKS, columns.get("terminated", np.ones(rows)), str(path))
    columns |= {"episode_ends": ends, "terminated": ~alive & ~ends if "next_obs" not in columns else ~alive}
    columns.setdefault("rewards", np.zeros(rows, dtype=np.float32))
    info = DataInfo(str(path), rewards_known=REWARDS in names)
    log = EpisodeLog.build(columns, info=info, lenient=target.lenient)
    return replace(log, timeouts_known=True)


def is_ogbench(path: Path) -> bool:
    """An archive with OGBench's keys and no time-outs: with `masks`, or without any rewards."""
    names = npz_names(path)
    ends = {OBSERVATIONS, ACTIONS, ENDS} <= names and not names & {"timeouts", "truncations", "truncated"}
    return ends and (MASKS in names or REWARDS not in names)


OGBENCH = Format(read=read_ogbench, recognise=is_ogbench, table_fields=())
