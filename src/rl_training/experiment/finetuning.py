"""Going on in an environment from a checkpoint of offline training, as a run of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rl_training.algorithms.recipe import get_recipe
from rl_training.core.checkpoints import load_run_state, resolve_checkpoint
from rl_training.core.errors import CheckpointError, ConfigError
from rl_training.core.train_config import TrainConfig, parse_config
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.foreign_paths import in_a_run, refuse_foreign_paths, with_data
from rl_training.experiment.training import train
from rl_training.experiment.workflows import (
    environment_of_state,
    place_for_new_run,
    require_algorithm,
    saved_config,
)
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.environments import EnvMaker, GivenEnv, Wrapper
from rl_training.runtime.run import Evaluator, TrainResult

COLLECTED = ("replay", "collector", "exploration", "unlogged_episodes")
"""What belongs to the environment that a checkpoint was collected in."""


def finetune_checkpoint(
    path: str | Path,
    *,
    timesteps: int,
    changes: Mapping[str, Any] | None = None,
    output_dir: str | Path | None = None,
    run_suffix: str | None = "finetune",
    callbacks: Sequence[Callback] | None = None,
    evaluators: Sequence[Evaluator] | None = None,
    dataset: TransitionDataset | None = None,
    data: str | Path | None = None,
    env: GivenEnv | EnvMaker | None = None,
    wrappers: Sequence[Wrapper] | None = None,
    allow_changed_data: bool = False,
    quiet: bool = False,
) -> TrainResult:
    """`timesteps` environment steps from a trained policy, in a new run directory that names its parent.

    The same as a run that had `online_timesteps` from the start. `changes` is a part of a config that
    replaces what the parent's says. `data` is where the data lies, in place of what the checkpoint says.
    """
    file, state = state_to_finetune(path)
    config = saved_config(state)
    if "dataset" in state["in_python"] and dataset is None and keeps_data(config, changes):
        raise ConfigError("dataset must be given: this run learned from a dataset that was passed in memory")
    if dataset is None and keeps_data(config, changes):
        given = {} if data is None else {"dataset_path": data}
        refuse_foreign_paths(file, config.algo_kwargs, given | (changes or {}).get("algo_kwargs", {}))
        config = with_data(config, data)
    maker = environment_of_state(state, config, env, wrappers)
    if maker is None:
        raise ConfigError("env_id must be given to fine-tune: this policy was trained without an environment")
    changes = {"output_dir": str(place_for_new_run(file)), **(changes or {})}
    if output_dir is not None:
        changes["output_dir"] = str(output_dir)
    config = online_config(config, state, timesteps, {**(changes or {}), "env_id": str(maker)})
    return train(
        config,
        run_suffix=run_suffix,
        checkpoint_state=state_at_the_border(state, file),
        callbacks=callbacks,
        evaluators=evaluators,
        dataset=dataset,
        env=maker,
        wrappers=(),
        allow_changed_data=allow_changed_data,
        quiet=quiet,
    )


def state_to_finetune(path: str | Path) -> tuple[Path, dict[str, Any]]:
    """A checkpoint of offline training and the file that holds it."""
    file = resolve_checkpoint(path)
    state = load_run_state(file, skip=COLLECTED)
    if "learner" not in state:
        raise CheckpointError(
            f"{file} holds a policy without its learner; fine-tune from a checkpoint of the run"
        )
    require_algorithm(state)
    if get_recipe(state["algo"]).online:
        raise ConfigError(
            f"algo must learn from data to be fine-tuned, {state['algo']} learns online already: go on with "
            f"rl-training resume --checkpoint {path} --total-timesteps N"
        )
    return file, state


def keeps_data(config: TrainConfig, changes: Mapping[str, Any] | None) -> bool:
    kwargs = {**config.algo_kwargs, **(changes or {}).get("algo_kwargs", {})}
    return bool(kwargs.get("offline_data") != "drop")


def online_config(
    config: TrainConfig, state: Mapping[str, Any], timesteps: int, changes: Mapping[str, Any]
) -> TrainConfig:
    """The parent's config with the steps it has made as its offline part, and an online part after them."""
    values = config.to_dict()
    kwargs = {**values["algo_kwargs"], **changes.get("algo_kwargs", {})}
    steps = {
        "total_timesteps": max(1, int(state["counters"]["global_step"])),
        "online_timesteps": timesteps,
    }
    return parse_config({**values, **changes, **steps, "algo_kwargs": kwargs})


def state_at_the_border(state: Mapping[str, Any], file: Path) -> dict[str, Any]:
    """The learner and its streams as they are, at the end of the offline phase of a run that begins here."""
    step = int(state["counters"]["global_step"])
    counters = {
        "global_step": step,
        "gradient_steps": int(state["counters"]["gradient_steps"]),
        "phase": 0,
        "phase_step": max(1, step),
    }
    folder = file.parent.parent if in_a_run(file) else file.parent
    parent = {"run": str(folder), "checkpoint": file.name, "step": step}
    fresh = {"counters": counters, "callbacks": {}, "results": {}, "online_span": 0, "parent": parent}
    return {**state, **fresh}
