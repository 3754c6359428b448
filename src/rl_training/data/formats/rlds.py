"""RLDS (TFDS) steps exported to Parquet or NPZ: observation, action, reward, is_first, is_last, is_terminal.

The last step of an episode holds its final observation and nothing else that counts: it becomes the successor
of the step before, which terminates if the last step `is_terminal`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np

from rl_training.config.data import DatasetSource
from rl_training.core.errors import DataError
from rl_training.core.types import Array
from rl_training.data.fields import by_number
from rl_training.data.formats import Format
from rl_training.data.formats.npz import npz_keys, npz_names, open_npz, write_arrays
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog, refuse_loss
from rl_training.data.reading import Target, as_flags, file_of
from rl_training.data.tables import cells
from rl_training.data.tables.files import files_of, kind_of_file
from rl_training.data.tables.read import open_table

FIRST, LAST, TERMINAL = "is_first", "is_last", "is_terminal"


def read_rlds(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read exported steps; `columns` chooses other keys than `observation`, `action` and `reward`."""
    path = file_of(source)
    names = _names(path)
    keys = _keys(names, source, str(path))
    arrays = _read(path, [key for group in keys.values() for key in group], target)
    pick = {field: [arrays[key] for key in group] for field, group in keys.items()}
    first, last, terminal = (as_flags(name, pick[name][0], str(path)) for name in (FIRST, LAST, TERMINAL))
    if not len(last):
        raise DataError(f"{path}: the dataset is empty (0 rows)")
    # a step counts if the next row is its successor
    counts = ~last[:-1] & ~first[1:]
    steps = np.flatnonzero(counts)
    if not len(steps):
        raise DataError(f"{path}: no step is followed by another one of its episode")
    obs = _matrix(pick["obs"])
    columns: dict[str, Array] = {
        "obs": obs[steps],
        "next_obs": obs[steps + 1],
        "actions": _matrix(pick["actions"])[steps],
        "terminated": terminal[steps + 1],
        "episode_ends": last[steps + 1] | ~np.append(counts[1:], False)[steps],
    }
    known = "rewards" in pick
    columns["rewards"] = pick["rewards"][0].reshape(-1)[steps] if known else np.zeros(len(steps), np.float32)
    info = replace(_info(path), rewards_known=known)
    if source.columns.units:
        info = replace(info, units=dict(source.columns.units))
    return EpisodeLog.build(columns, info=info, lenient=target.lenient)


def is_rlds(path: Path) -> bool:
    """A table or archive with the three flags of RLDS."""
    flags = {FIRST, LAST, TERMINAL}
    if path.suffix.lower() == ".npz":
        return flags <= {_short(name) for name in npz_names(path)}
    if kind_of_file(path) != "parquet" and not path.is_dir():
        return False
    try:
        return flags <= {_short(name) for name in _names(path)}
    except DataError:
        return False


def _short(name: str) -> str:
    """`steps/is_first` and `steps.is_first` are `is_first`."""
    return name.replace("/", ".").removeprefix("steps.")


def _names(path: Path) -> list[str]:
    if path.suffix.lower() == ".npz":
        return npz_keys(path)
    return list(open_table(files_of(path)[0], DatasetSource()).names)


def _keys(names: Iterable[str], source: DatasetSource, where: str) -> dict[str, list[str]]:
    """Field -> keys of the file."""
    by_short = {_short(name): name for name in names}
    found = {name: [by_short[name]] for name in (FIRST, LAST, TERMINAL) if name in by_short}
    columns = source.columns
    parts = [short for short in by_short if short.startswith("observation.")]
    usual = {
        "obs": [name for name in ("observation", "observations") if name in by_short] or by_number(parts),
        "actions": [name for name in ("action", "actions") if name in by_short],
        "rewards": [name for name in ("reward", "rewards") if name in by_short],
    }
    given = {"obs": columns.observations, "actions": columns.actions, "rewards": columns.reward}
    for field, chosen in given.items():
        wanted = ([chosen] if isinstance(chosen, str) else list(chosen or ())) or usual[field][
            : None if field == "obs" else 1
        ]
        unknown = [name for name in wanted if _short(name) not in by_short]
        if unknown or (not wanted and field != "rewards"):
            what = f"no key {unknown[0]!r}" if unknown else f"no {field}"
            raise DataError(f"{where}: has {what}; it has {', '.join(by_short)}")
        if wanted:
            found[field] = [by_short[_short(name)] for name in wanted]
    missing = [name for name in (FIRST, LAST, TERMINAL) if name not in found]
    if missing:
        raise DataError(f"{where}: missing key {missing[0]!r}; it has {', '.join(by_short)}")
    return found


def _read(path: Path, keys: list[str], target: Target) -> dict[str, Array]:
    if path.suffix.lower() == ".npz":
        with open_npz(path, target) as archive:
            return {key: archive.read(key, "rewards") for key in keys}
    pieces: dict[str, list[Array]] = {key: [] for key in keys}
    for file in files_of(path):
        for batch in open_table(file, DatasetSource()).batches(dict.fromkeys(keys, "number")):
            for index, key in enumerate(keys):
                pieces[key].append(cells.numbers(batch.column(index), key, str(file)))
    return {key: np.concatenate(parts) if parts else np.zeros(0) for key, parts in pieces.items()}


def _info(path: Path) -> DataInfo:
    """What a file written here says about itself."""
    if path.suffix.lower() != ".npz":
        return DataInfo(str(path))
    with open_npz(path) as archive:
        return archive.info()


def _matrix(parts: list[Array]) -> Array:
    return np.concatenate([part.reshape(len(part), -1) for part in parts], axis=1)


def write_rlds(log: EpisodeLog, path: Path) -> None:
    """Steps as an NPZ: every episode gets a last step that holds its final observation and nothing else."""
    refuse_loss(log, "RLDS", successors=True)
    assert log.next_obs is not None  # just checked
    ends = np.flatnonzero(log.ends)
    inside = np.flatnonzero(~log.ends)
    if not np.array_equal(log.next_obs[inside], log.obs[inside + 1]):
        raise DataError(f"{log.info.source}: RLDS needs every next observation to be that of the next row")
    after, steps = ends + 1, len(log) + len(ends)
    final = after + np.arange(len(ends))
    arrays: dict[str, Array] = {
        "observation": np.insert(log.obs, after, log.next_obs[ends], axis=0),
        "action": np.insert(log.actions, after, 0, axis=0),
        "discount": 1.0 - np.insert(log.terminated, after, False).astype(np.float32),
        LAST: np.isin(np.arange(steps), final),
        TERMINAL: np.isin(np.arange(steps), final[log.terminated[ends]]),
    }
    arrays[FIRST] = np.append(True, arrays[LAST][:-1])
    if log.info.rewards_known:
        arrays["reward"] = np.insert(log.rewards, after, 0)
    write_arrays(path, arrays, log.info)


RLDS = Format(read=read_rlds, recognise=is_rlds, write=write_rlds, table_fields=("columns",))
