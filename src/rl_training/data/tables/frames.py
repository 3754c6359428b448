"""Data frames in memory (pandas, polars, Arrow and whatever else speaks Arrow) as rows of a table."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rl_training.config.data_fields import TableFields
from rl_training.core.errors import DataError
from rl_training.data.data_info import DataInfo
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.reading import Target
from rl_training.data.tables.assembling import read_rows
from rl_training.data.tables.files import import_pyarrow


@dataclass(frozen=True)
class Frame:
    """An Arrow table as a source of rows."""

    table: Any

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self.table.column_names)

    @property
    def rows(self) -> int:
        return int(self.table.num_rows)

    def batches(self, kinds: Mapping[str, str]) -> Iterable[Any]:
        batches: Iterable[Any] = self.table.select(list(kinds)).combine_chunks().to_batches()
        return batches


def frame_log(frame: Any, settings: TableFields, source: str, target: Target | None = None) -> EpisodeLog:
    """The log that a frame holds."""
    table = Frame(as_arrow(frame))
    return read_rows(
        [(source, table)],
        settings,
        target or Target(),
        source=source,
        capacity=table.rows,
        info=DataInfo(source),
    )


def as_arrow(frame: Any) -> Any:
    """An Arrow table of a frame, through the Arrow protocol; mappings of columns are welcome too."""
    pa = import_pyarrow()
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    try:
        if isinstance(frame, Mapping):
            return pa.table({name: _column(pa, values) for name, values in frame.items()})
        if hasattr(frame, "collect") and not hasattr(frame, "__arrow_c_stream__"):
            frame = frame.collect()  # a frame of polars whose computation was put off
        if hasattr(frame, "__arrow_c_stream__"):
            return pa.table(frame)
        if hasattr(frame, "__dataframe__"):
            from pyarrow.interchange import from_dataframe

            return from_dataframe(frame)
    except (pa.ArrowException, TypeError, ValueError) as problem:
        text = " ".join(str(problem).split())
        raise DataError(f"the frame cannot be read as an Arrow table: {text}") from None
    raise DataError(
        "a frame must be a pandas, polars or Arrow table, or a mapping of columns, got "
        f"{type(frame).__name__}"
    )


def _column(pa: Any, values: Any) -> Any:
    if isinstance(values, np.ndarray) and values.ndim == 2:
        return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), values.shape[1])
    return pa.array(values)


def as_names(value: str | Sequence[str] | None) -> list[str]:
    """One name or several as a list."""
    return [value] if isinstance(value, str) else list(value or ())
