"""What users do with a file from somewhere, mostly without the command line around it."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
from samples import MINARI_ID

from rl_training.cli import main
from rl_training.cli.app import BUG
from rl_training.config.run import load_config
from rl_training.core.errors import UserError
from rl_training.data import TransitionDataset
from rl_training.data.convert import (
    DatasetLocation,
    read_location,
    source_location,
    target_location,
    write_location,
)
from rl_training.data.inspect import inspect_log
from rl_training.policies.files import load_policy, predict_file
from rl_training.report.compare import compare_runs
from rl_training.report.pages import write_report
from rl_training.report.study import find_runs
from rl_training.runs import train as execution
from rl_training.runs.evaluate import evaluate_checkpoint
from rl_training.runs.export import export_checkpoint
from rl_training.runs.resume import finetune_checkpoint, resume_training
from rl_training.sweeps.plan import final_metrics, load_sweep_config, plan_sweep, refuse_foreign, run_status
from rl_training.sweeps.tune import load_tune_config

Check = Callable[[Path], object]
"""Opens what lies in a folder."""

execution.plot_learning_curve = lambda *_, **__: None  # a picture takes longer than all the rest


class Bug(Exception):
    """The command line said that something is a bug of ours."""


def command(*words: str) -> Check:
    """A whole command; `{}` is the folder."""

    def check(folder: Path) -> None:
        said = io.StringIO()
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            code = main([word.replace("{}", str(folder)) for word in words])
        if code == BUG:
            raise Bug(said.getvalue())
        if code:
            raise UserError(f"exit code {code}: {said.getvalue()}")

    return check


def config(folder: Path) -> None:
    load_config(folder / "config.yaml").run_config()


def sweep(folder: Path) -> None:
    plan_sweep(load_sweep_config(folder / "config.yaml"), folder / "runs")


def tune(folder: Path) -> None:
    load_tune_config(folder / "config.yaml")


def place_of(folder: Path, kind: str) -> DatasetLocation:
    if kind == "minari":
        return DatasetLocation(kind, folder, MINARI_ID)
    if kind == "lerobot":
        return source_location(str(folder))
    (file,) = folder.glob("*.*")
    return source_location(str(file))


def inspect(kind: str) -> Check:
    return lambda folder: inspect_log(read_location(place_of(folder, kind), lenient=True), None)


def use(kind: str) -> Check:
    """As training reads it, and written again."""

    def check(folder: Path) -> None:
        log = read_location(place_of(folder, kind), exact=True)
        TransitionDataset.from_log(log)
        write_location(log, target_location(str(folder / "converted.npz")))

    return check


def predict(name: str) -> Check:
    def check(folder: Path) -> None:
        policy = load_policy(folder / name)
        found = policy.predict(np.zeros((2, policy.spaces.obs_dim), np.float32))
        assert np.isfinite(found).all(), "an action is NaN"

    return check


def predict_for(policy: Path, name: str) -> Check:
    return lambda folder: predict_file(load_policy(policy), folder / name, folder / "actions.csv")


def resume(folder: Path) -> None:
    resume_training(_checkpoint(folder), total_timesteps=12, output_dir=folder / "resumed", quiet=True)


def resume_in_place(folder: Path) -> None:
    resume_training(folder, total_timesteps=12, quiet=True)


def finetune(folder: Path) -> None:
    finetune_checkpoint(_checkpoint(folder), timesteps=4, output_dir=folder / "tuned", quiet=True)


def evaluate(folder: Path) -> None:
    evaluate_checkpoint(_checkpoint(folder), num_episodes=1)


def export(folder: Path) -> None:
    export_checkpoint(_checkpoint(folder), folder / "exported.safetensors")


def report(folder: Path) -> None:
    write_report([str(folder)], folder / "report.html", format="html")


def compare(folder: Path) -> None:
    runs = find_runs([folder])
    compare_runs(runs, runs)


def sweep_status(folder: Path) -> None:
    """What a sweep that comes by a directory asks of it."""
    run_status(folder)
    final_metrics(folder)
    refuse_foreign(folder, load_config("sac/pendulum"))


def _checkpoint(folder: Path) -> Path:
    """A checkpoint that lies in the folder alone, or the run that the folder is."""
    return next(iter(folder.glob("*.safetensors")), folder)
