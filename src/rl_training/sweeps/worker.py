"""What a worker does with one task: skip, resume or start, and write down a failure."""

from __future__ import annotations

import shutil
import traceback
from collections.abc import Sequence
from contextlib import ExitStack

from rl_training.core.atomic import write_json_atomic
from rl_training.core.errors import RunFailed, UserError
from rl_training.experiment.claims import claim, refuse_directory_in_use
from rl_training.experiment.training import train
from rl_training.experiment.workflows import resume_training
from rl_training.runtime.callbacks.base import Callback
from rl_training.sweeps.plan import SweepRun, Task
from rl_training.sweeps.status import FAILURE_FILE, refuse_foreign, run_status


def perform(task: Task, callbacks: Sequence[Callback] | None = None) -> None:
    """Bring every run of the task to its end; what is done already is left alone."""
    import torch

    torch.set_num_threads(1)  # a sum over threads rounds by their number: results must not depend on it
    with ExitStack() as claims:
        for run in task.runs:
            claims.enter_context(claim(run.run_dir))
        try:
            _train(task, callbacks)
        except Exception as problem:
            _note_failure(task, problem)
            raise


def _train(task: Task, callbacks: Sequence[Callback] | None) -> None:
    for run in task.runs:
        refuse_foreign(run.run_dir, run.config)
    left = [run for run in task.runs if run_status(run.run_dir).state != "done"]
    if len(left) == len(task.runs) > 1:
        _start(left, callbacks)  # a stack goes on as a stack or not at all: alone its seeds round otherwise
        return
    for run in left:
        (run.run_dir / FAILURE_FILE).unlink(missing_ok=True)
        if run_status(run.run_dir).can_resume:
            resume_training(run.run_dir, callbacks=list(callbacks or ()), quiet=True)
        else:
            _start([run], callbacks)


def _start(runs: Sequence[SweepRun], callbacks: Sequence[Callback] | None) -> None:
    """Train from the first step in empty directories."""
    for run in runs:
        if run.run_dir.exists():
            refuse_directory_in_use(run.run_dir)
            shutil.rmtree(run.run_dir)
    config = runs[0].config
    if len(runs) > 1:
        config = config.replace(seeds=[run.config.seed for run in runs])
    result = train(config, callbacks=callbacks, quiet=True)
    used = [member.run_dir for member in result.members or (result,)]
    if used != [run.run_dir for run in runs]:
        raise RunFailed(f"{used[0]} was used in place of {runs[0].run_dir}: something else wrote there")


def _note_failure(task: Task, problem: Exception) -> None:
    """Leave the reason in the directory, where the next attempt and the table find it."""
    expected = isinstance(problem, UserError)
    text = "; ".join(str(problem).splitlines()) if expected else f"{type(problem).__name__}: {problem}"
    details = None if expected else traceback.format_exc()
    for run in task.runs:
        try:
            refuse_foreign(run.run_dir, run.config)
        except UserError:
            continue
        if run_status(run.run_dir).state != "done":
            run.run_dir.mkdir(parents=True, exist_ok=True)
            write_json_atomic(run.run_dir / FAILURE_FILE, {"error": text, "traceback": details})
