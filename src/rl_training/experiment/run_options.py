"""How a run is started, beside its config."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypedDict

from rl_training.core.errors import ConfigError
from rl_training.core.plain import State
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.logging import Sink
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.environments import EnvMaker, GivenEnv, Wrapper
from rl_training.runtime.run import Evaluator


class RunOptions(TypedDict, total=False):
    """How a run is started, beside its config."""

    run_suffix: str | None
    checkpoint_state: State | None
    callbacks: Sequence[Callback] | None
    evaluators: Sequence[Evaluator] | None
    trackers: Sequence[Sink] | None
    dataset: TransitionDataset | None
    env: GivenEnv | EnvMaker | None
    wrappers: Sequence[Wrapper] | None
    run_dir: Path | None
    allow_changed_data: bool
    live: bool
    quiet: bool


def check_parts(options: RunOptions) -> None:
    """Objects of the wrong kind are refused here, in words, and not where they are first used."""
    for index, callback in enumerate(options.get("callbacks") or ()):
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"callbacks[{index}] must be a Callback (subclass rl_training.Callback and override a hook), "
                f"got {callback!r}"
            )
    for index, tracker in enumerate(options.get("trackers") or ()):
        if not isinstance(tracker, Sink):
            raise ConfigError(
                f"trackers[{index}] must have write(step, metrics, kind) and close(), got {tracker!r}"
            )
    functions = {"evaluators": options.get("evaluators"), "wrappers": options.get("wrappers")}
    for name, given in functions.items():
        for index, part in enumerate(given or ()):
            if not callable(part):
                raise ConfigError(f"{name}[{index}] must be a function, got {part!r}")
    dataset = options.get("dataset")
    if dataset is not None and not isinstance(dataset, TransitionDataset):
        raise ConfigError(f"dataset must be a TransitionDataset, got {type(dataset).__name__}")
