"""LeRobot datasets, version 2.1 (a file per episode) and 3 (files of many episodes); state vectors only.

Most are demonstrations without a reward. The end of an episode is a time-out unless `next.done` is recorded
and `next.truncated`, where it exists too, is not set.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config.data import ColumnsConfig, DatasetSource
from rl_training.core.errors import DataError
from rl_training.core.files import parse_json
from rl_training.core.schema import MAX_WIDTH, SchemaProblem, fact, read_facts
from rl_training.data.formats import Format
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import Target, file_of, files_below, refuse_outside
from rl_training.data.tables.build import read_rows
from rl_training.data.tables.files import import_pyarrow
from rl_training.data.tables.read import TableFile, open_table

INFO_FILE = Path("meta") / "info.json"
STATE, ACTION, REWARD = "observation.state", "action", "next.reward"
DONE, TRUNCATED = "next.done", "next.truncated"


@dataclass(frozen=True)
class LeRobotFacts:
    """What is read of `meta/info.json`; its templates of paths are not: data lies below `data`."""

    features: Mapping[str, Any]
    codebase_version: str | None = None
    total_frames: int | None = fact(None, least=0)


@dataclass(frozen=True)
class _Frames:
    """A data file whose `next.done` says where the task ended, not where the recording was cut."""

    table: TableFile
    split_done: bool

    @property
    def label(self) -> str:
        return self.table.label

    @property
    def notes(self) -> Sequence[str]:
        return self.table.notes

    @property
    def names(self) -> tuple[str, ...]:
        return self.table.names

    @property
    def rows(self) -> int:
        return self.table.rows

    def batches(self, kinds: Mapping[str, str]) -> Iterator[Any]:
        for batch in self.table.batches(kinds):
            if self.split_done:
                pc = import_pyarrow().compute
                done = pc.and_not(batch.column(DONE), batch.column(TRUNCATED))
                batch = batch.set_column(batch.schema.get_field_index(DONE), DONE, done)
            yield batch


def read_lerobot(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read the frames of a dataset folder; `columns.observations` chooses other features than the state."""
    folder = file_of(source)
    info = _info(folder)
    data = folder / "data"
    files = [file for file in files_below(folder) if file.suffix == ".parquet" and data in file.parents]
    if not files:
        raise DataError(f"{folder}: has no data/*/*.parquet files")
    tables = [open_table(file, source, kind="parquet") for file in files]
    columns = _columns(source.columns, tables[0].names, folder)
    split = columns.terminated == DONE and columns.truncated == TRUNCATED
    rows = sum(table.rows for table in tables)
    log = read_rows(
        [(str(table.path), _Frames(table, split)) for table in tables],
        source.model_copy(update={"columns": columns}),
        target,
        source=str(folder),
        capacity=rows,
        info=DataInfo(
            source=str(folder),
            observation_names=_feature_names(folder, info.features, columns.observations),
            action_names=_feature_names(folder, info.features, columns.actions),
        ),
    )
    if info.total_frames not in (None, rows):
        raise DataError(
            f"{folder}: {INFO_FILE} promises {info.total_frames} frames, but its files hold {rows}"
        )
    return log


def is_lerobot(path: Path) -> bool:
    """A folder with `meta/info.json` that names LeRobot's version of the layout."""
    try:
        return (path / INFO_FILE).is_file() and _info(path).codebase_version is not None
    except DataError:
        return False


def _info(folder: Path) -> LeRobotFacts:
    refuse_outside(folder, folder / INFO_FILE)
    try:
        info = parse_json((folder / INFO_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as problem:
        raise DataError(f"{folder}: {INFO_FILE} cannot be read ({problem})") from None
    try:
        return read_facts(LeRobotFacts, info, others=True)
    except SchemaProblem as problem:
        raise DataError(f"{folder}: {INFO_FILE} cannot be used: {problem}") from None


def _columns(given: ColumnsConfig, names: tuple[str, ...], folder: Path) -> ColumnsConfig:
    observations = given.observations or (STATE,)
    vectors = [name for name in names if name.startswith("observation")]
    for name in observations:
        if name not in names and "*" not in name:
            listed = ", ".join(vectors) or "none"
            raise DataError(
                f"{folder}: has no feature {name!r} to observe; columns.observations can name: {listed}"
            )
    recorded = {
        "reward": REWARD,
        "episode": "episode_index",
        "time": "timestamp",
        "terminated": DONE,
        "truncated": TRUNCATED,
    }
    if given.terminated or given.truncated:
        recorded = {key: name for key, name in recorded.items() if key not in ("terminated", "truncated")}
    found = {key: name for key, name in recorded.items() if getattr(given, key) is None and name in names}
    return given.replace(observations=list(observations), actions=list(given.actions or (ACTION,)), **found)


def _feature_names(folder: Path, features: Any, chosen: tuple[str, ...]) -> tuple[str, ...] | None:
    """One name per number; the layouts in use are a list, a list in a list, and a mapping of lists."""
    names: list[str] = []
    for feature in chosen:
        described = features.get(feature)
        listed = list(_flat(described.get("names"))) if isinstance(described, dict) else []
        shape = described.get("shape") if isinstance(described, dict) else None
        if shape == [len(listed)]:
            names += listed
        elif isinstance(shape, list) and len(shape) == 1 and isinstance(shape[0], int):
            if not 0 < shape[0] <= MAX_WIDTH:
                raise DataError(
                    f"{folder}: {INFO_FILE} gives features.{feature} the shape {shape}; "
                    f"1 to {MAX_WIDTH} numbers can be read"
                )
            names += [f"{feature}_{index}" for index in range(shape[0])]
        else:
            return None
    return tuple(names)


def _flat(names: Any) -> Iterator[str]:
    if isinstance(names, dict):
        names = list(names.values())
    if isinstance(names, list):
        for name in names:
            yield from _flat(name)
    elif isinstance(names, str):
        yield names


LEROBOT = Format(read=read_lerobot, recognise=is_lerobot)
