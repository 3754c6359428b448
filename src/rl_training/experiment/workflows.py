"""What people do with a checkpoint: evaluate it, predict with it, go on training."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Unpack

import gymnasium as gym
import numpy.typing as npt

from rl_training.config.run_fields import ControlFields
from rl_training.core.algorithms import ALGORITHMS
from rl_training.core.checkpoints import load_run_state, newest_checkpoint, resolve_checkpoint
from rl_training.core.devices import choose_device
from rl_training.core.errors import CheckpointError, ConfigError, UserError
from rl_training.core.plain import Facts, State
from rl_training.core.spaces import FloatArray
from rl_training.core.train_config import RunFields, TrainConfig, parse_config
from rl_training.data.data_info import ReferenceReturns
from rl_training.experiment.foreign_paths import in_a_run, refuse_foreign_paths, with_data
from rl_training.experiment.run_options import RunOptions
from rl_training.experiment.training import train
from rl_training.policies.deployed import DeployedPolicy
from rl_training.policies.loading import is_policy_file, load_policy
from rl_training.policies.packing import missing_part
from rl_training.policies.saved import NOT_FOR_ACTING, load_saved_policy, policy_of_state
from rl_training.runtime.callbacks.evaluation import eval_metrics
from rl_training.runtime.environments import EnvMaker, GivenEnv, Wrapper, env_maker
from rl_training.runtime.evaluation import ActingPolicy
from rl_training.runtime.run import TrainResult, evaluate_run_policy


def evaluate_checkpoint(
    path: str | Path,
    *,
    num_episodes: int | None = None,
    device: str = "auto",
    env: GivenEnv | None = None,
    wrappers: Sequence[Wrapper] | None = None,
) -> State:
    """Episodes with the saved policy in its environment, or in `env`; as many as the run's config says.

    An exported policy plays the same episodes as the run that it was exported from, on the processor.
    """
    exported = load_policy(path) if is_policy_file(Path(path)) else None
    state = load_run_state(path, skip=NOT_FOR_ACTING) if exported is None else exported_state(exported, path)
    return evaluate_state(
        state, num_episodes=num_episodes, device=device, env=env, wrappers=wrappers, policy=exported
    )


def exported_state(policy: DeployedPolicy, path: str | Path) -> State:
    """What an evaluation asks of a checkpoint, out of the metadata of an exported policy."""
    try:
        training = policy.metadata["training"]
        counters = {name: int(training[name]) for name in ("global_step", "gradient_steps")}
        found = {"config": training["config"], "reference": policy.metadata["reference_returns"]}
    except (KeyError, TypeError, ValueError) as problem:
        raise UserError(f"policy {path} is damaged: it does not say how it was trained") from problem
    return {**found, "counters": counters, "in_python": ()}


def evaluate_state(
    state: Facts,
    *,
    num_episodes: int | None = None,
    device: str = "auto",
    env: GivenEnv | EnvMaker | None = None,
    wrappers: Sequence[Wrapper] | None = None,
    policy: ActingPolicy | None = None,
) -> State:
    """The same from a checkpoint that is open already; `policy` acts in place of the one in it."""
    config, settings = saved_fields(state)
    maker = environment_of_state(state, config, env, wrappers)
    if maker is None:
        raise ConfigError("env_id must be given to evaluate: this policy was trained without an environment")
    if num_episodes is not None and num_episodes < 1:
        raise ConfigError(f"num_episodes must be >= 1, got {num_episodes}")
    policy = policy or policy_of_state(state, choose_device(device))
    episodes = num_episodes or max(1, config.eval_episodes)
    reference = state["reference"]
    result = evaluate_run_policy(policy, maker, config, settings, episodes)
    return {
        **eval_metrics(result, None if reference is None else ReferenceReturns.from_dict(reference)),
        "global_step": state["counters"]["global_step"],
        "gradient_steps": state["counters"]["gradient_steps"],
    }


def predict_checkpoint(path: str | Path, obs: npt.ArrayLike, *, deterministic: bool = True) -> FloatArray:
    """Actions, in the environment's units, for one observation or a batch."""
    return load_saved_policy(path).predict(obs, deterministic)


def environment_of_state(
    state: Facts,
    config: RunFields,
    env: GivenEnv | EnvMaker | None,
    wrappers: Sequence[Wrapper] | None,
) -> EnvMaker | None:
    """The environment for a checkpoint: what the user gives, else what it names if that imports nothing."""
    if env is None and "env" in state["in_python"]:
        raise ConfigError("env must be given: this run's environment was passed as an object")
    if wrappers is None and (config.wrappers or "wrappers" in state["in_python"]):
        options = " ".join(f"--wrapper {name}" for name in config.wrappers) or "wrappers=[…] in Python"
        raise ConfigError(
            "wrappers must be given again: they are code, which a checkpoint does not get to import; "
            f"if you trust them: {options}"
        )
    if env is None and config.env_id is None:
        return None
    if env is None:
        env = refuse_import(config.env_id or "")
    return env_maker(env, wrappers or ())


def refuse_import(env_id: str) -> str:
    """An id out of a file, unless using it would import a module that the file names."""
    module, colon, _ = env_id.partition(":")
    if colon and env_id not in gym.registry:
        raise ConfigError(
            f"env_id {env_id!r} comes from a file and would import the module {module!r}; "
            f"if you trust it, give it yourself: --env-id {env_id}, or env={env_id!r} in Python"
        )
    return env_id


def saved_config(state: Facts) -> TrainConfig:
    """The config a checkpoint was written with, checked against this version's settings."""
    require_algorithm(state)
    with fitting_this_version():
        return parse_config(state["config"])


def saved_fields(state: Facts) -> tuple[RunFields, ControlFields]:
    """As much of that config as acting needs: also where the algorithm is not known."""
    with fitting_this_version():
        config = RunFields.build(state["config"])
        known = config.algo_kwargs.keys() & ControlFields.model_fields
        return config, ControlFields.build({name: config.algo_kwargs[name] for name in known})


def require_algorithm(state: Facts) -> None:
    """To train on, a checkpoint needs its algorithm."""
    if state["algo"] not in ALGORITHMS:
        raise CheckpointError(missing_part("algorithm", state["algo"], state["algo_package"]))


@contextmanager
def fitting_this_version() -> Iterator[None]:
    try:
        yield
    except ConfigError as problem:
        raise CheckpointError(
            f"this checkpoint's config does not fit this version: {'; '.join(str(problem).splitlines())}"
        ) from problem


def resume_training(
    path: str | Path,
    *,
    total_timesteps: int | None = None,
    online_timesteps: int | None = None,
    output_dir: str | Path | None = None,
    data: str | Path | None = None,
    **options: Unpack[RunOptions],
) -> TrainResult:
    """Go on exactly where a checkpoint was written, to a new total.

    By default in the same run directory; from a checkpoint that is not its newest in a new one beside it, so
    that what came after it is not lost. A file outside a run directory goes on in `runs` where one works, and
    does not say which files are read: `data` is where its data lies.
    """
    file = resolve_checkpoint(path)
    state = load_run_state(file)
    if "learner" not in state:
        raise CheckpointError(
            f"{file} holds a policy without its learner; resume from a checkpoint of the run"
        )
    config = saved_config(state)
    if options.get("dataset") is None:
        refuse_foreign_paths(file, config.algo_kwargs, {} if data is None else {"dataset_path": data})
        config = with_data(config, data)
    if "live" in state["in_python"]:
        raise ConfigError("this run learns from a loop of your own: load it in Python and call go_live()")
    if "dataset" in state["in_python"] and options.get("dataset") is None:
        raise ConfigError("dataset must be given: this run learned from a dataset that was passed in memory")
    options["env"] = environment_of_state(state, config, options.get("env"), options.get("wrappers"))
    options["wrappers"] = ()
    changes: State = {}
    if total_timesteps is not None:
        refuse_passed_phase(state, config, total_timesteps)
        changes["total_timesteps"] = total_timesteps
    if online_timesteps is not None:
        changes["online_timesteps"] = online_timesteps
    newest = in_a_run(file) and file == newest_checkpoint(file.parent)
    if output_dir is None and options.get("run_suffix") is None and newest:
        options["run_dir"] = file.parent.parent
    else:
        changes["output_dir"] = str(output_dir or place_for_new_run(file))
    options["checkpoint_state"] = state
    return train(parse_config({**config.to_dict(), **changes}), **options)


def place_for_new_run(file: Path) -> Path:
    """Beside the run of a checkpoint, or `runs` for a file from anywhere: files do not choose."""
    return file.resolve().parent.parent.parent if in_a_run(file) else Path("runs")


def refuse_passed_phase(state: Facts, config: TrainConfig, total_timesteps: int) -> None:
    """The length of an offline phase that is over cannot be changed any more."""
    if state["counters"]["phase"] and total_timesteps != config.total_timesteps:
        raise ConfigError(
            f"total_timesteps must stay {config.total_timesteps}, the length of the offline phase that is "
            f"over, got {total_timesteps}; give online_timesteps for a longer online phase"
        )
