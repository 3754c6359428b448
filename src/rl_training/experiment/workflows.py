"""What people do with a checkpoint: evaluate it, predict with it, go on training."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy.typing as npt

from rl_training.core.checkpoints import load_checkpoint, newest_checkpoint, resolve_checkpoint
from rl_training.core.errors import CheckpointError, ConfigError
from rl_training.core.registry import get_algorithm_spec
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.train_config import TrainConfig, parse_config
from rl_training.core.transforms import ObservationNormalizer
from rl_training.data.data_info import ReferenceReturns
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.runs import CHECKPOINT_FOLDER
from rl_training.policies.policy import Policy
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.callbacks.evaluation import eval_metrics
from rl_training.runtime.compiling import choose_device
from rl_training.runtime.run import TrainResult, evaluate_run_policy

NOT_FOR_ACTING = ("replay", "collector")


def evaluate_checkpoint(
    path: str | Path, *, num_episodes: int | None = None, device: str = "auto"
) -> dict[str, Any]:
    """Episodes with the saved policy in its environment; as many as the run's config says by default."""
    state = load_checkpoint(path, skip=NOT_FOR_ACTING)
    return evaluate_state(state, num_episodes=num_episodes, device=device)


def evaluate_state(
    state: dict[str, Any], *, num_episodes: int | None = None, device: str = "auto"
) -> dict[str, Any]:
    config = saved_config(state)
    if config.env_id is None:
        raise ConfigError("env_id must be given to evaluate: this policy was trained without an environment")
    if num_episodes is not None and num_episodes < 1:
        raise ConfigError(f"num_episodes must be >= 1, got {num_episodes}")
    policy = policy_from_state(state, device)
    episodes = num_episodes or max(1, config.eval_episodes)
    reference = state["reference"]
    result = evaluate_run_policy(policy, config, config.run_config(), episodes)
    return {
        **eval_metrics(result, None if reference is None else ReferenceReturns.from_dict(reference)),
        "global_step": state["counters"]["global_step"],
        "gradient_steps": state["counters"]["gradient_steps"],
    }


def predict_checkpoint(path: str | Path, obs: npt.ArrayLike, *, deterministic: bool = True) -> FloatArray:
    """Actions, in the environment's units, for one observation or a batch."""
    return load_policy_from_checkpoint(path).predict(obs, deterministic)


def load_policy_from_checkpoint(path: str | Path, device: str = "auto") -> Policy:
    """The saved policy, complete: network, scaling, bounds."""
    return policy_from_state(load_checkpoint(path, skip=NOT_FOR_ACTING), device)


def policy_from_state(state: dict[str, Any], device: str = "auto") -> Policy:
    config = saved_config(state)
    spaces = Spaces.from_dict(state["spaces"])
    saved = state["normalizer"]
    normalizer = None if saved is None else ObservationNormalizer.from_state_dict(saved)
    recipe = get_algorithm_spec(config.algo).recipe
    learner = recipe.build_learner(config.run_config(), spaces, config.seed, choose_device(device))
    learner.load_state_dict(state["learner"])
    return Policy(learner, spaces, normalizer)


def saved_config(state: dict[str, Any]) -> TrainConfig:
    """The config a checkpoint was written with, checked against this version's settings."""
    try:
        return parse_config(state["config"])
    except ConfigError as problem:
        raise CheckpointError(
            f"this checkpoint's config does not fit this version: {'; '.join(str(problem).splitlines())}"
        ) from problem


def resume_training(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    output_dir: str | Path | None = None,
    run_suffix: str | None = None,
    callbacks: list[Callback] | None = None,
    dataset: TransitionDataset | None = None,
    quiet: bool = False,
) -> TrainResult:
    """Go on exactly where a checkpoint was written, to a new total.

    By default in the same run directory; from a checkpoint that is not its newest in a new one, so that
    what came after it is not lost.
    """
    file = resolve_checkpoint(path)
    state = load_checkpoint(file)
    config = saved_config(state)
    if state["dataset_in_python"] and dataset is None:
        raise ConfigError("dataset must be given: this run learned from a dataset that was passed in memory")
    changes: dict[str, Any] = {}
    if total_timesteps is not None:
        changes["total_timesteps"] = total_timesteps
    if output_dir is not None:
        changes["output_dir"] = str(output_dir)
    config = parse_config({**config.model_dump(mode="json"), **changes})
    newest = file.parent.name == CHECKPOINT_FOLDER and file == newest_checkpoint(file.parent)
    in_place = output_dir is None and run_suffix is None and newest
    result: TrainResult = get_algorithm_spec(config.algo).train_fn(
        config,
        run_suffix=run_suffix,
        checkpoint_state=state,
        callbacks=callbacks,
        dataset=dataset,
        run_dir=file.parent.parent if in_place else None,
        quiet=quiet,
    )
    return result
