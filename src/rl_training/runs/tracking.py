"""Weights & Biases and MLflow as further sinks of a run's metrics.

Both work without a network: nothing is sent unless the environment variables of the tracker say so. A tracker
is a convenience, so a failing one is reported once and left out; `metrics.jsonl` stays the record of the run.
"""

from __future__ import annotations

import json
import logging
import os
import time
import uuid
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from rl_training.core.errors import ConfigError, install_hint
from rl_training.core.files import write_json_atomic
from rl_training.core.types import Facts, State
from rl_training.runs.metrics import Kind, Sink, Values, tag_of

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
