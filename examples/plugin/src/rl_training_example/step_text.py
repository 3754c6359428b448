"""A data format: text with one step a line, `obs … | action … | reward`, and empty lines between episodes.

`dataset_kind: step_text`, or nothing at all: `dataset_kind: auto` recognises the ending `.steps`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from rl_training.config.data import DatasetSource
from rl_training.core.errors import DataError
from rl_training.data import DataInfo
from rl_training.data.formats import Format, has_ending
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import Target


def read(source: DatasetSource, target: Target) -> EpisodeLog:
    """The steps of a file; an episode's end is a time-out, as the format does not say more."""
    path = Path(source.dataset_path or "")
    rows, last = [], []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip():
            last = [*last[:-1], True] if last else last
            continue
        rows.append(parse(line, path, number))
        last.append(False)
    if not rows:
        raise DataError(f"{path}: holds no steps")
    last[-1] = True
    obs, actions, rewards = (np.array(column, dtype=np.float32) for column in zip(*rows, strict=True))
    columns = {
        "obs": obs,
        "actions": actions,
        "rewards": rewards,
        "terminated": np.zeros(len(rows), dtype=np.bool_),
        "truncated": np.array(last),
    }
    return EpisodeLog.build(columns, info=DataInfo(source=str(path)))


def parse(line: str, path: Path, number: int) -> tuple[list[float], list[float], float]:
    try:
        obs, action, reward = ([float(cell) for cell in part.split()] for part in line.split("|"))
        return obs, action, reward[0]
    except (ValueError, IndexError):
        raise DataError(
            f"{path} line {number}: must read `obs | action | reward`, got {line[:60]!r}"
        ) from None


FORMAT = Format(read=read, suffixes=(".steps",), recognise=has_ending(".steps"))
