"""What a run directory tells: how far the run in it got, and whether it is the run that it should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from rl_training.config.run import TrainConfig, load_config
from rl_training.core.checkpoints import newest_checkpoint
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.files import CHECKPOINT_FOLDER, parse_json
from rl_training.core.types import Facts, number
from rl_training.judging.candidates import candidate_of
from rl_training.runs.directory import CONFIG_FILE, read_summary
from rl_training.runs.metrics import read_metrics

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
    metrics: Facts = field(default_factory=dict)
    """The numbers that a finished run ended with."""

    @property
    def done(self) -> bool:
        return self.state == "done"

    @property
    def shown_return(self) -> str:
        """The return, or the value by the log where nothing was measured."""
        judged = candidate_of([self.metrics])
        if self.eval_return is None and judged is not None:
            return f"{judged.value.value:,.4g} estimated, {judged.told}"
        return "" if self.eval_return is None else f"{self.eval_return:,.1f}"


def run_status(run_dir: Path) -> Status:
    """Done, interrupted, crashed or new; a summary that a signal left behind does not count as done."""
    rows = read_metrics(run_dir)
    step = max((row["step"] for row in rows), default=0)
    try:
        summary = read_summary(run_dir) or {}
    except UserError:
        summary = {}  # one that cannot be read counts as none: the run is resumed, or done again
    reason = summary.get("stop_reason") or "signal"
    if not reason.startswith("signal"):
        metrics = summary.get("metrics") or {}
        reached = metrics.get("global_step")
        step = reached if isinstance(reached, int) else step
        return Status("done", step, number(metrics.get("eval_return_mean")), metrics=metrics)
    returns = [row["eval_return_mean"] for row in rows if row.get("eval_return_mean") is not None]
    eval_return = returns[-1] if returns else None
    can_resume = newest_checkpoint(run_dir) is not None
    if (problem := _failure(run_dir)) is not None:
        return Status("crashed", step, eval_return, problem, can_resume)
    return Status("interrupted" if can_resume else "new", step, eval_return, None, can_resume)


def _failure(run_dir: Path) -> str | None:
    """Why the run crashed, where it could write that down."""
    try:
        written = parse_json((run_dir / FAILURE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(written.get("error")) if isinstance(written, dict) and written else None


def final_metrics(run_dir: Path) -> Facts:
    """The numbers a finished run ended with; none of a run that is not done."""
    return run_status(run_dir).metrics


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
    left, right = _resolved(saved), _resolved(config)
    different = [name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)]
    if different:
        raise ConfigError(
            f"{run_dir} holds a run with another {', '.join(different)}; give another output_dir or delete it"
        )


def _resolved(config: TrainConfig) -> dict[str, object]:
    values = config.to_dict()
    settings = config.run_config().to_dict()
    del values["output_dir"], values["algo_kwargs"]  # a sweep's directory may be moved
    return values | {f"algo_kwargs.{name}": value for name, value in settings.items()}
