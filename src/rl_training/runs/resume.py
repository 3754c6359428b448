"""What people do with a checkpoint: evaluate it, predict with it, go on training or fine-tune it."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Unpack

from rl_training.algorithms.recipe import get_recipe
from rl_training.config.run import TrainConfig, parse_config
from rl_training.core.checkpoints import newest_checkpoint, resolve_checkpoint
from rl_training.core.errors import ConfigError
from rl_training.core.types import Facts, State
from rl_training.runs.directory import RunLock
from rl_training.runs.saved import (
    SavedRun,
    Surroundings,
    environment_for,
    in_a_run,
    with_trackers,
)
from rl_training.runs.train import RunOptions, train
from rl_training.runtime.callbacks import TrainResult

IN_MEMORY = "dataset must be given: this run learned from a dataset that was passed in memory"


def resume_training(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    online_timesteps: int | None = None,
    output_dir: str | Path | None = None,
    data: str | Path | None = None,
    env_kwargs: Facts | None = None,
    tracker_names: tuple[str, ...] | list[str] | None = None,
    **options: Unpack[RunOptions],
) -> TrainResult:
    """Go on exactly where a checkpoint was written, to a new total.

    By default in the same run directory; from a checkpoint that is not its newest in a new one beside it, so
    that what came after it is not lost. A file outside a run directory goes on in `runs` where one works, and
    does not say which files are read: `data` is where its data lies. Nor does any file start a tracker:
    `tracker_names` are those to go on with. A directory that another process trains in is refused, unless
    `output_dir` says where the copy is to go.
    """
    elsewhere = output_dir is not None or options.get("run_suffix") is not None
    file, held = (resolve_checkpoint(path), None) if elsewhere else claimed_checkpoint(path)
    with held or nullcontext():
        run = SavedRun(file)
        state = run.training_state("resume from a checkpoint")
        config = config_to_resume(run, data, options)
        said = surroundings_of(options, env_kwargs)
        options["env"], config = environment_for(config, run.facts.in_python, **said)
        options |= {"wrappers": (), "checkpoint_state": state, "claim": held}
        changes: State = {}
        if total_timesteps is not None:
            refuse_passed_phase(run, total_timesteps)
            changes["total_timesteps"] = total_timesteps
        if online_timesteps is not None:
            changes["online_timesteps"] = online_timesteps
        if held is None:
            changes["output_dir"] = str(output_dir or run.place_for_new_run)
        return train(with_trackers(config.replace(**changes), tracker_names), **options)


def surroundings_of(options: RunOptions, env_kwargs: Facts | None) -> Surroundings:
    return {"env": options.get("env"), "wrappers": options.get("wrappers"), "env_kwargs": env_kwargs}


def claimed_checkpoint(path: str | Path) -> tuple[Path, RunLock | None]:
    """A checkpoint of a run that nobody trains in; if it is the newest one, with the claim to go on there."""
    file = resolve_checkpoint(path)
    if not in_a_run(file):
        return file, None
    claim = RunLock(file.parent.parent)
    if (file := resolve_checkpoint(path)) == newest_checkpoint(file.parent):  # now that nobody saves another
        return file, claim
    claim.release()
    return file, None


def config_to_resume(run: SavedRun, data: str | Path | None, options: RunOptions) -> TrainConfig:
    """The config of a checkpoint from which training can go on, with its data where the user says it lies."""
    config = run.config
    if "live" in run.facts.in_python:
        raise ConfigError("this run learns from a loop of your own: load it in Python and call go_live()")
    if options.get("dataset") is not None:
        return config
    run.refuse_foreign_paths({} if data is None else {"dataset_path": data})
    if "dataset" in run.facts.in_python:
        raise ConfigError(IN_MEMORY)
    return with_data(config, data)


def with_data(config: TrainConfig, data: str | Path | None) -> TrainConfig:
    """The config with its data where the user says it lies."""
    if data is None:
        return config
    return config.replace(algo_kwargs={**config.algo_kwargs, "dataset_path": str(data)})


def refuse_passed_phase(run: SavedRun, total_timesteps: int) -> None:
    """The length of an offline phase that is over cannot be changed any more."""
    planned = run.config.total_timesteps
    if run.facts.counters.phase and total_timesteps != planned:
        raise ConfigError(
            f"total_timesteps must stay {planned}, the length of the offline phase that is "
            f"over, got {total_timesteps}; give online_timesteps for a longer online phase"
        )


# ---- going on in an environment from a checkpoint of offline training, as a run of its own

COLLECTED = ("replay", "collector", "exploration", "unlogged_episodes")
"""What belongs to the environment that a checkpoint was collected in."""

OWN_OPTIONS = {
    "env_id": "--env-id (env in Python)",
    "wrappers": "--wrapper (wrappers in Python)",
    "total_timesteps": "--timesteps, the steps in the environment (timesteps in Python)",
    "online_timesteps": "--timesteps (timesteps in Python)",
}
"""Settings that a change of the config cannot make, and what makes it."""


def finetune_checkpoint(
    path: str | Path,
    *,
    timesteps: int,
    changes: Facts | None = None,
    output_dir: str | Path | None = None,
    data: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> TrainResult:
    """`timesteps` environment steps from a trained policy, in a new run directory that names its parent.

    The same as a run that had `online_timesteps` from the start. `changes` is a part of a config that
    replaces what the parent's says; trackers, and keywords of the environment that name files, are taken from
    nowhere else. `data` is where the data lies, in place of what the checkpoint says.
    """
    given = changes or {}
    refuse_settings_of_options(given, output_dir)
    run = SavedRun(path)
    state = state_at_the_border(run)
    config, kept = run.config, keeps_data(run.config, given)
    if data is not None and not kept:
        raise ConfigError("data must be left out where offline_data is drop: none of it would be read")
    if kept and options.get("dataset") is None:
        if "dataset" in run.facts.in_python:
            raise ConfigError(IN_MEMORY)
        told = {} if data is None else {"dataset_path": data}
        run.refuse_foreign_paths(told | given.get("algo_kwargs", {}))
        config = with_data(config, data)
    said = surroundings_of(options, given.get("env_kwargs"))
    maker, config = environment_for(config, run.facts.in_python, **said)
    if maker is None:
        raise ConfigError("env_id must be given to fine-tune: this policy was trained without an environment")
    config = with_trackers(config, given.get("trackers"))
    place = given.get("output_dir", run.place_for_new_run) if output_dir is None else output_dir
    config = online_config(run, config, timesteps, {**given, "output_dir": str(place), "env_id": str(maker)})
    options.setdefault("run_suffix", "finetune")
    options |= {"checkpoint_state": state, "env": maker, "wrappers": ()}
    return train(config, **options)


def refuse_settings_of_options(changes: Facts, output_dir: str | Path | None) -> None:
    """What an option says must not also stand among the changes, where it would be ignored."""
    for name, option in OWN_OPTIONS.items():
        if name in changes:
            raise ConfigError(f"{name} must be given with {option}, got {name}={changes[name]!r}")
    if output_dir is not None and str(output_dir) != str(changes.get("output_dir", output_dir)):
        both = f"as {str(output_dir)!r} and as {str(changes['output_dir'])!r}"
        raise ConfigError(f"output_dir is given twice, {both}: leave one of them out")


def keeps_data(config: TrainConfig, changes: Facts) -> bool:
    """Whether the online phase still reads the data of the offline one."""
    kwargs = {**config.algo_kwargs, **changes.get("algo_kwargs", {})}
    return bool(kwargs.get("offline_data") != "drop")


def online_config(run: SavedRun, config: TrainConfig, timesteps: int, changes: Facts) -> TrainConfig:
    """The parent's config with the steps it has made as its offline part, and an online part after them."""
    values = config.to_dict()
    kwargs = {**values["algo_kwargs"], **changes.get("algo_kwargs", {})}
    steps = {"total_timesteps": max(1, run.facts.counters.global_step), "online_timesteps": timesteps}
    return parse_config({**values, **changes, **steps, "algo_kwargs": kwargs})


def state_at_the_border(run: SavedRun) -> State:
    """The learner and its streams as they are, at the end of the offline phase of a run that begins here."""
    state = run.training_state("fine-tune from a checkpoint", skip=COLLECTED)
    run.require_algorithm()
    if get_recipe(run.facts.algo).online:
        raise ConfigError(
            f"algo must learn from data to be fine-tuned, {run.facts.algo} learns online already: go on with "
            f"rl-training resume --checkpoint {run.path} --total-timesteps N"
        )
    step = run.facts.counters.global_step
    counters = {
        "global_step": step,
        "gradient_steps": run.facts.counters.gradient_steps,
        "phase": 0,
        "phase_step": max(1, step),
    }
    parent = {"run": str(run.run_dir or run.file.parent), "checkpoint": run.file.name, "step": step}
    fresh = {"counters": counters, "callbacks": {}, "results": {}, "online_span": 0, "parent": parent}
    learner = {**state["learner"], "products": None}  # of a run of its own, perhaps on another machine
    return {**state, "learner": learner, "processor": None, **fresh}
