"""Metrics of a run: one JSON line per report in `metrics.jsonl`, and the same numbers for TensorBoard."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Literal, Protocol, Self, runtime_checkable

from rl_training.core.atomic import plain_json, reason, replace_file
from rl_training.core.errors import RunFailed
from rl_training.core.json_text import parse_json
from rl_training.core.plain import Facts, State

METRICS_FILE = "metrics.jsonl"
ROW_KEYS = ("step", "kind", "time")

Kind = Literal["train", "eval", "collect"]
Values = Mapping[str, float | None]


@runtime_checkable
class Sink(Protocol):
    """A place that metrics go to; a further tracker is a class with these two methods."""

    def write(self, step: int, metrics: Values, kind: Kind) -> None: ...

    def close(self) -> None: ...


class MetricsLogger:
    """Sends every report of a run to all its sinks.

    On resume, rows after `resume_from_step` are dropped: the steps that follow a checkpoint are about to be
    repeated.
    """

    def __init__(
        self, run_dir: str | Path, *, resume_from_step: int | None = None, trackers: Iterable[Sink] = ()
    ) -> None:
        self.sinks: list[Sink] = [
            JsonLinesSink(Path(run_dir) / METRICS_FILE, resume_from_step),
            TensorBoardSink(Path(run_dir), resume_from_step),
            *trackers,
        ]

    def log(self, step: int, metrics: Facts, kind: Kind = "train") -> None:
        """Report numbers, also zero-dimensional tensors and `None`, that belong to one step."""
        taken = [name for name in ROW_KEYS if name in metrics]
        if taken:
            raise ValueError(f"a metric must not be called {taken[0]!r}: every row has a {taken[0]} already")
        values = {name: plain_json(value) for name, value in metrics.items()}
        for sink in self.sinks:
            sink.write(int(step), values, kind)

    def close(self) -> None:
        for sink in self.sinks:
            sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class JsonLinesSink:
    """`metrics.jsonl`: each line an object with `step`, `kind`, `time` and the metrics beside them."""

    def __init__(self, path: Path, resume_from_step: int | None) -> None:
        self._path = path
        try:
            if path.exists():
                self._keep_rows(resume_from_step)
            # Unbuffered: a row is in the file as soon as it is logged, and a failed write is not tried again.
            self._file = path.open("ab", buffering=0)
        except OSError as problem:
            raise _cannot_write(path, problem) from problem

    def write(self, step: int, metrics: Values, kind: Kind) -> None:
        row = {"step": step, "kind": kind, "time": round(time.time(), 3), **metrics}
        line = json.dumps(row, allow_nan=False).encode() + b"\n"
        try:
            while line:
                line = line[self._file.write(line) :]
        except OSError as problem:
            raise _cannot_write(self._path, problem) from problem

    def close(self) -> None:
        self._file.close()

    def _keep_rows(self, last_step: int | None) -> None:
        """Rewrite the file without later rows and without a last line that a kill left unfinished."""
        rows = _read_rows(self._path)
        with replace_file(self._path) as file:
            for row in rows:
                if last_step is None or row["step"] <= last_step:
                    file.write(json.dumps(row).encode() + b"\n")


class TensorBoardSink:
    """TensorBoard event files in the run directory; tags read `train/critic_loss`, `eval/return_mean`.

    Events are written in the calling thread. The stock writers use a thread of their own, which does not mix
    with forked environments, loses the last seconds on a kill and prints a traceback when the disk is full.
    """

    def __init__(self, run_dir: Path, resume_from_step: int | None) -> None:
        self._path = _next_events_file(run_dir)
        self._resume_from_step = resume_from_step
        self._file: BinaryIO | None = None

    def write(self, step: int, metrics: Values, kind: Kind) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [
            Summary.Value(tag=tag_of(kind, name), simple_value=value)
            for name, value in metrics.items()
            if value is not None
        ]
        if not values:
            return
        try:
            if self._file is None:
                self._file = self._path.open("xb", buffering=0)
                self._append_start(self._file)
            self._append(self._file, step=step, summary=Summary(value=values))
        except OSError as problem:
            raise _cannot_write(self._path, problem) from problem

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _append_start(self, file: BinaryIO) -> None:
        from tensorboard.compat.proto.event_pb2 import SessionLog

        self._append(file, file_version="brain.Event:2")
        if self._resume_from_step is not None:
            # TensorBoard then hides what earlier files say about this step and later ones.
            restart = SessionLog(status=SessionLog.START)
            self._append(file, step=self._resume_from_step + 1, session_log=restart)

    @staticmethod
    def _append(file: BinaryIO, **content: Any) -> None:
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.summary.writer.record_writer import RecordWriter

        RecordWriter(file).write(Event(wall_time=time.time(), **content).SerializeToString())


def _next_events_file(run_dir: Path) -> Path:
    """Named by the time, but behind all that are there: TensorBoard reads them in order of name."""
    stem = "events.out.tfevents"
    taken = [path.suffix[1:] for path in run_dir.glob(f"{stem}.*")]
    number = max([time.time_ns() // 1_000_000, *(int(each) + 1 for each in taken if each.isdecimal())])
    return run_dir / f"{stem}.{number:013d}"


def tag_of(kind: Kind, name: str) -> str:
    """How trackers name a metric: `train/critic_loss`, `eval/return_mean`."""
    return f"{kind}/{name.removeprefix(f'{kind}_')}"


def read_metrics(run_dir: str | Path) -> list[State]:
    """The rows of `metrics.jsonl` in the order they were logged; none if the run has not logged yet."""
    path = Path(run_dir) / METRICS_FILE
    return _read_rows(path) if path.is_file() else []


def _read_rows(path: Path) -> list[State]:
    """All complete rows; a half-written line, as a kill leaves it, is not one."""
    rows = []
    for line in path.read_bytes().splitlines():
        try:
            row = parse_json(line)
        except ValueError:
            continue
        if isinstance(row, dict) and isinstance(row.get("step"), int):
            rows.append(row)
    return rows


def _cannot_write(path: Path, problem: OSError) -> RunFailed:
    return RunFailed(
        f"cannot write {path}: {reason(problem)}; free space and resume from the newest checkpoint"
    )
