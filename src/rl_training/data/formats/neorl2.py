"""NeoRL-2 NPZ: obs, next_obs, action, reward, done, truncated, and `index`, the first rows of episodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rl_training.config.data import DatasetSource
from rl_training.core.errors import DataError
from rl_training.data.episodes import episode_starts
from rl_training.data.formats import Format
from rl_training.data.formats.npz import npz_names, open_npz, write_arrays
from rl_training.data.log import EpisodeLog, refuse_loss
from rl_training.data.reading import Target, as_flags, file_of

KEYS = {"obs": "obs", "actions": "action", "rewards": "reward", "next_obs": "next_obs", "dones": "done"}
TRUNCATED, INDEX = "truncated", "index"


def read_neorl2(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read the file; a row that is done and truncated was only cut."""
    path = file_of(source)
    with open_npz(path, target) as archive:
        archive.require((*KEYS.values(), INDEX))
        columns, info = archive.columns(KEYS), archive.info()
        firsts = archive.read(INDEX, "episode_ids").reshape(-1)
        cut = np.zeros(len(columns["rewards"]), dtype=bool)
        if TRUNCATED in archive.names:
            cut = as_flags(TRUNCATED, archive.read(TRUNCATED, "truncated"), str(path))
    rows = len(cut)
    if firsts.dtype.kind not in "iu" or not ((firsts >= 0) & (firsts < max(1, rows))).all():
        raise DataError(f"{path}: {INDEX} must hold the first rows of episodes, between 0 and {rows - 1}")
    done = as_flags("done", columns.pop("dones"), str(path))
    ends = done | cut
    ends[firsts[firsts > 0] - 1] = True
    columns |= {"terminated": done & ~cut, "episode_ends": ends}
    return EpisodeLog.build(columns, info=info, lenient=target.lenient)


def is_neorl2(path: Path) -> bool:
    return {*KEYS.values(), INDEX} <= npz_names(path)


def write_neorl2(log: EpisodeLog, path: Path) -> None:
    """Write the arrays of NeoRL-2, and beside them what is known about them."""
    refuse_loss(log, "NeoRL-2", successors=True)
    assert log.next_obs is not None  # just checked
    rows = {"obs": log.obs, "next_obs": log.next_obs, "action": log.actions, "reward": log.rewards}
    rows |= {"done": log.terminated, TRUNCATED: log.truncated, INDEX: episode_starts(log.ends)}
    write_arrays(path, rows, log.info)


NEORL2 = Format(read=read_neorl2, recognise=is_neorl2, write=write_neorl2, table_fields=())
