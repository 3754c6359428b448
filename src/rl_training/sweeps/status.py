"""What became of a run, read from its directory: the disk is the only memory of a sweep."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from rl_training.core.checkpoints import newest_checkpoint
from rl_training.core.config_files import load_config
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.json_text import parse_json
from rl_training.core.places import CHECKPOINT_FOLDER
from rl_training.core.plain import Facts
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.logging import read_metrics
from rl_training.experiment.runs import CONFIG_FILE
from rl_training.experiment.summary_file import read_summary

FAILURE_FILE = "failure.json"
OWN_ENTRIES = {CHECKPOINT_FOLDER, FAILURE_FILE}

State = Literal["new", "interrupted", "crashed", "done"]


@dataclass(frozen=True)
class Status:
    """`new`: nothing worth keeping. `interrupted`: there is a checkpoint. `crashed`: it said why."""

    state: State
    step: int = 0
    eval_return: float | None = None
    problem: str | None = None
    can_resume: bool = False
    estimate: float | None = None
    """Value by the log, where nothing was measured"""


def run_status(run_dir: Path) -> Status:
    """Done, interrupted, crashed or new; a summary that a signal left behind does not count as done."""
    step, eval_return = _progress(run_dir)
    summary = _summary(run_dir)
    reason = summary.get("stop_reason") or "signal"
    if not reason.startswith("signal"):
        metrics = summary.get("metrics") or {}
        reached = metrics.get("global_step")
        step = reached if isinstance(reached, int) else step
        measured, estimated = (_number(metrics.get(name)) for name in ("eval_return_mean", "judge_value"))
        return Status("done", step, measured, estimate=estimated)
    can_resume = newest_checkpoint(run_dir) is not None
    failure = _read_json(run_dir / FAILURE_FILE)
    if failure:
        return Status("crashed", step, eval_return, str(failure.get("error")), can_resume)
    return Status("interrupted" if can_resume else "new", step, eval_return, None, can_resume)


def refuse_foreign(run_dir: Path, config: TrainConfig) -> None:
    """A directory that holds anything but this very run is never touched."""
    file = run_dir / CONFIG_FILE
    if not file.is_file():
        if run_dir.exists() and {entry.name for entry in run_dir.iterdir()} - OWN_ENTRIES:
            raise ConfigError(f"{run_dir} holds files that are not a run; give another output_dir")
        return
    try:
        saved = load_config(file)
    except UserError as problem:
        line = str(problem).splitlines()[0]
        raise ConfigError(
            f"{run_dir} holds a run of another version ({line}); give another output_dir"
        ) from None
    different = _differences(_resolved(saved), _resolved(config))
    if different:
        raise ConfigError(
            f"{run_dir} holds a run with another {', '.join(different)}; give another output_dir or delete it"
        )


def _resolved(config: TrainConfig) -> dict[str, object]:
    values = config.to_dict()
    settings = config.run_config().to_dict()
    del values["output_dir"], values["algo_kwargs"]  # a sweep's directory may be moved
    return values | {f"algo_kwargs.{name}": value for name, value in settings.items()}


def _differences(left: dict[str, object], right: dict[str, object]) -> list[str]:
    return [name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)]


def _progress(run_dir: Path) -> tuple[int, float | None]:
    rows = read_metrics(run_dir)
    returns = [row["eval_return_mean"] for row in rows if row.get("eval_return_mean") is not None]
    return max((row["step"] for row in rows), default=0), returns[-1] if returns else None


def _read_json(path: Path) -> Facts:
    """An object, or an empty one where the file is missing or unreadable."""
    try:
        value = parse_json(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def final_metrics(run_dir: Path) -> dict[str, object]:
    """The numbers a finished run ended with; none of a run that is not done."""
    if run_status(run_dir).state != "done":
        return {}
    return dict(_summary(run_dir).get("metrics") or {})


def _number(value: object) -> float | None:
    return value if isinstance(value, int | float) else None


def _summary(run_dir: Path) -> Facts:
    """One that cannot be read counts as none: the run is resumed, or done again."""
    try:
        return read_summary(run_dir) or {}
    except UserError:
        return {}
