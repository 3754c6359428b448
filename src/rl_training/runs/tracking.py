"""Metrics of a run and where they go: `metrics.jsonl`, TensorBoard, the screen, Weights & Biases, MLflow."""

from __future__ import annotations

import json
import logging
import os
import sys
import time
import uuid
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from statistics import fmean
from types import ModuleType
from typing import Any, BinaryIO, Literal, Protocol, Self, runtime_checkable

from rl_training.core.errors import ConfigError, RunFailed, install_hint, shown
from rl_training.core.files import parse_json, plain_json, reason, replace_file, write_json_atomic
from rl_training.core.types import Facts, Numbers, State
from rl_training.runs.directory import refuse_broken_metrics
from rl_training.runtime.callbacks import Callback, Interval, Run
from rl_training.runtime.loop import PHASE_NAMES
from rl_training.runtime.progress import ProgressDisplay

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

    def __exit__(self, *_: object) -> None:
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
        for row in rows:
            _refuse_text(self._path, row)
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
    def _append(file: BinaryIO, **content: object) -> None:
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


def _refuse_text(path: Path, row: Facts) -> None:
    """What is read again when the run ends must be numbers, or all its steps would be for nothing."""
    for name, value in row.items():
        number = isinstance(value, int | float) and abs(value) <= sys.float_info.max
        if name != "kind" and value is not None and not number:
            raise RunFailed(
                f"{path}: {name} of step {row['step']} must be a number, got {shown(value)}; mend that line "
                "or delete it, and resume again"
            )


def _cannot_write(path: Path, problem: OSError) -> RunFailed:
    return RunFailed(
        f"cannot write {path}: {reason(problem)}; free space and resume from the newest checkpoint"
    )


class MetricsLog(Callback):
    """Writes update metrics every `log_interval` steps and every evaluation; stops a run that diverged."""

    def __init__(self, logger: MetricsLogger, log_interval: int) -> None:
        self.logger = logger
        self.interval = Interval(log_interval)
        self.started = (time.perf_counter(), 0)

    def on_train_start(self, run: Run) -> None:
        self.interval.start(run.global_step)
        self.started = (time.perf_counter(), run.gradient_steps)

    def on_step_end(self, run: Run) -> None:
        if self.interval.due(run.global_step):
            self.log(run)

    def on_train_end(self, run: Run) -> None:
        if self.interval.last != run.global_step:
            self.log(run)

    def on_eval_end(self, run: Run, metrics: Numbers, scheduled: bool) -> None:
        numbers = {name: value for name, value in metrics.items() if not isinstance(value, str)}
        self.logger.log(run.global_step, numbers | phase_number(run), "eval")

    def log(self, run: Run) -> None:
        self.interval.last = run.global_step
        episodes = run.take_episodes()
        if episodes:
            mean = sum(episode.ret for episode in episodes) / len(episodes)
            run.results["rollout_return_mean"] = mean
            rollout = {"rollout_return_mean": mean, "rollout_episodes": float(len(episodes))}
            paid = [episode.cost for episode in episodes if episode.cost is not None]
            if paid:
                rollout["rollout_cost_mean"] = run.results["rollout_cost_mean"] = fmean(paid)
            self.logger.log(run.global_step, rollout | phase_number(run), "collect")
        if not run.gradient_steps:
            return
        metrics = run.update_metrics()
        clock, steps = self.started
        rate = (run.gradient_steps - steps) / max(1e-9, time.perf_counter() - clock)
        own, run.logged = run.logged, {}
        numbers = {**metrics, **own, "updates_per_second": rate, **phase_number(run)}
        self.logger.log(run.global_step, numbers, "train")
        refuse_broken_metrics(run, metrics)

    def close(self, run: Run) -> None:
        self.logger.close()


def phase_number(run: Run) -> dict[str, float]:
    """Which phase a row belongs to, in a run that has several: 0 offline, 1 warm-up, 2 online."""
    if len(run.trainer.phases) == 1:
        return {}
    return {"phase": float(PHASE_NAMES.index(run.phase))}


class Progress(Callback):
    """Tells the display how far the run is, a few times a second and after every evaluation."""

    def __init__(self, display: ProgressDisplay, total: int) -> None:
        self.display, self.total = display, total
        self.clock = 0.0
        self.shown = (0.0, 0)
        self.ended: float | None = None

    def on_train_start(self, run: Run) -> None:
        env = f" on {run.config.env_id}" if run.config.env_id else ""
        self.display.start(self.total, f"{run.config.algo}{env}", completed=run.global_step)
        self.shown = (time.perf_counter(), run.gradient_steps)

    def on_step_end(self, run: Run) -> None:
        now = time.perf_counter()
        if now - self.clock >= 0.2:
            self.clock = now
            self.show(run)

    def on_eval_end(self, run: Run, metrics: Numbers, scheduled: bool) -> None:
        self.show(run, evaluated=True)

    def on_train_end(self, run: Run) -> None:
        self.show(run)

    def show_stage(self, run: Run, name: str, done: int, total: int) -> None:
        """How far something is that is made when all steps are; its time is none of the updates'."""
        if self.ended is None:
            self.ended = time.perf_counter()
            self.show(run)
        self.display.stage(name, done, total)

    def show(self, run: Run, *, evaluated: bool = False) -> None:
        started, steps = self.shown
        rate = (run.gradient_steps - steps) / max(1e-9, (self.ended or time.perf_counter()) - started)
        known = (run.results.get(name) for name in ("eval_return_mean", "rollout_return_mean"))
        self.display.update(
            run.global_step,
            updates_per_second=rate,
            last_return=next((value for value in known if value is not None), None),
            losses=run.update_metrics if run.gradient_steps else dict,
            evaluated=evaluated,
        )

    def close(self, run: Run) -> None:
        self.display.stop()


DROP_STEPS = 10_000
"""Online steps in which the lowest evaluation counts as the drop."""


def online_numbers(
    rows: Sequence[Facts], offline_steps: int, metric: str = "eval_return_mean"
) -> dict[str, float | None]:
    """From a run's logged rows: the return before the first online step and what became of it.

    `online_drop` is how far the lowest evaluation of the first 10,000 online steps lies below it;
    `online_return_mean` is the mean over the evaluations of the online phase; `online_regret` is 1 minus
    their mean normalised score (as a share), where a score is known; `online_rollout_mean` is the mean return
    of the episodes that were collected while learning. With another evaluation metric than the return, the
    evaluations are read on its scale.
    """
    returns = _logged(rows, "eval", metric)
    before = next((value for step, value in reversed(returns) if step <= offline_steps), None)
    later = [(step, value) for step, value in returns if step > offline_steps]
    early = [value for step, value in later if step <= offline_steps + DROP_STEPS]
    lowest = min(early) if early else None
    scores = [value for step, value in _logged(rows, "eval", "eval_normalized_score") if step > offline_steps]
    rollouts = _logged(rows, "collect", "rollout_episodes", "rollout_return_mean")
    episodes = sum(count for step, count, _ in rollouts if step > offline_steps)
    earned = sum(count * mean for step, count, mean in rollouts if step > offline_steps)
    return {
        "online_return_before": before,
        "online_return_lowest": lowest,
        "online_drop": None if before is None or lowest is None else max(0.0, before - lowest),
        "online_return_last": later[-1][1] if later else None,
        "online_return_mean": fmean(value for _, value in later) if later else None,
        "online_regret": 1.0 - fmean(scores) / 100.0 if scores else None,
        "online_episodes": episodes,
        "online_rollout_mean": earned / episodes if episodes else None,
    }


def _logged(rows: Sequence[Facts], kind: str, *names: str) -> list[list[float]]:
    """The step and these numbers of every row that has all of them."""
    return [
        [int(row["step"]), *(float(row[name]) for name in names)]
        for row in rows
        if row.get("kind") == kind and all(row.get(name) is not None for name in names)
    ]


# ---- weights & Biases and MLflow as further sinks of a run's metrics


IDENTITIES_FILE = "trackers.json"
PROJECT = "rl_training"
LONGEST_PARAMETER = 500
PARAMETERS_PER_CALL = 100
SILENT = {"wandb": ("WANDB_ERROR_REPORTING", "false"), "mlflow": ("MLFLOW_DISABLE_TELEMETRY", "true")}
"""What keeps a tracker from telling its makers that it is used; what the user's own variable says wins."""


def open_trackers(names: Sequence[str], run_dir: Path, config: Facts) -> list[Sink]:
    """The chosen trackers of a run; one that is not installed is a mistake of the config."""
    kinds: State = {"wandb": WandbSink, "mlflow": MlflowSink}
    for name in names:
        _module(name)
    return [GuardedSink(name, kinds[name], run_dir, config) for name in names]


class GuardedSink:
    """Keeps the trouble of a tracker away from the run: no network, no space there, a changed server."""

    def __init__(self, name: str, kind: type[Any], run_dir: Path, config: Facts) -> None:
        self._name = name
        self._sink: Sink | None = None
        try:
            self._sink = kind(run_dir, config)
        except Exception as problem:
            self._give_up(problem)

    def write(self, step: int, metrics: Values, kind: Kind) -> None:
        if self._sink is not None:
            try:
                self._sink.write(step, metrics, kind)
            except Exception as problem:
                self._give_up(problem)

    def close(self) -> None:
        if self._sink is not None:
            try:
                self._sink.close()
            except Exception as problem:
                self._give_up(problem)

    def _give_up(self, problem: Exception) -> None:
        self._sink = None
        reason = (str(problem).splitlines() or [type(problem).__name__])[0]
        warnings.warn(f"tracker {self._name} is left out of the rest of this run: {reason}", stacklevel=3)


class WandbSink:
    """A W&B run in the run directory, offline unless `WANDB_MODE=online`."""

    def __init__(self, run_dir: Path, config: Facts) -> None:
        wandb = _module("wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            id=_identity(run_dir, "wandb", lambda: uuid.uuid4().hex[:12]),
            name=run_dir.name,
            dir=str(run_dir),
            config=dict(config),
            mode=os.environ.get("WANDB_MODE", "offline"),
            resume="allow",
            reinit="create_new",  # seeds trained as one batch each have a run of their own
            settings=wandb.Settings(console="off", silent=True),
        )
        # A resumed run repeats steps; W&B's own counter would refuse to go back, an axis of ours does not.
        self._run.define_metric("global_step")
        self._run.define_metric("*", step_metric="global_step")

    def write(self, step: int, metrics: Values, kind: Kind) -> None:
        numbers = {tag_of(kind, name): value for name, value in metrics.items() if value is not None}
        self._run.log({**numbers, "global_step": step})

    def close(self) -> None:
        self._run.finish()


class MlflowSink:
    """An MLflow run: at `MLFLOW_TRACKING_URI`, or in a database file in the run directory."""

    def __init__(self, run_dir: Path, config: Facts) -> None:
        self._entities = import_module("mlflow.entities")
        logging.getLogger("mlflow").setLevel(logging.WARNING)  # its notes would tear the progress bar
        uri = os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{run_dir.resolve() / 'mlflow.db'}"
        self._client = import_module("mlflow.tracking").MlflowClient(tracking_uri=uri)
        self._run_id = _identity(run_dir, "mlflow", lambda: self._create(run_dir, config))
        self._client.update_run(self._run_id, status="RUNNING")

    def _create(self, run_dir: Path, config: Facts) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT)
        experiment = self._client.get_experiment_by_name(name)
        number = self._client.create_experiment(name) if experiment is None else experiment.experiment_id
        run_id: str = self._client.create_run(number, run_name=run_dir.name).info.run_id
        parameters = [self._entities.Param(key, text) for key, text in _flat(config)]
        for start in range(0, len(parameters), PARAMETERS_PER_CALL):
            self._client.log_batch(run_id, params=parameters[start : start + PARAMETERS_PER_CALL])
        return run_id

    def write(self, step: int, metrics: Values, kind: Kind) -> None:
        now = int(time.time() * 1000)
        numbers = [
            self._entities.Metric(tag_of(kind, name), float(value), now, step)
            for name, value in metrics.items()
            if value is not None
        ]
        self._client.log_batch(self._run_id, metrics=numbers)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


def _identity(run_dir: Path, tracker: str, create: Callable[[], str]) -> str:
    """The tracker's name for this run: a resumed run goes on with the one it had."""
    path = run_dir / IDENTITIES_FILE
    known: dict[str, str] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    if tracker not in known:
        known[tracker] = create()
        write_json_atomic(path, known)
    return known[tracker]


def _flat(values: Facts, where: str = "") -> Iterator[tuple[str, str]]:
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{where}{key}.")
        else:
            yield f"{where}{key}", str(value)[:LONGEST_PARAMETER]


def _module(name: str) -> ModuleType:
    os.environ.setdefault(*SILENT[name])
    try:
        return import_module(name)
    except ImportError:
        raise ConfigError(f"trackers must be installed, got {name!r}: {install_hint(name)}") from None
