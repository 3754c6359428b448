"""The object behind every managed class: it learns, evaluates, predicts, saves, loads and learns live."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

import numpy.typing as npt

from rl_training.config.run import TrainConfig, load_config, parse_config
from rl_training.core.checkpoints import save_checkpoint
from rl_training.core.errors import CheckpointError, ConfigError, UserError
from rl_training.core.registry import ALGORITHMS
from rl_training.core.spaces import FloatArray
from rl_training.core.types import Facts, State
from rl_training.data.read import GivenData, as_dataset
from rl_training.policies.acting import Decision
from rl_training.policies.guard_fitting import Guard
from rl_training.policies.policy import Policy
from rl_training.runs.evaluate import evaluate_run
from rl_training.runs.export import export_policy, make_guard
from rl_training.runs.live import LiveSession, open_live
from rl_training.runs.resume import finetune_checkpoint, resume_training
from rl_training.runs.saved import (
    SavedRun,
    Surroundings,
    environment_for,
    refuse_foreign_paths,
    with_trackers,
)
from rl_training.runs.tracking import Sink
from rl_training.runs.train import RunOptions, train
from rl_training.runtime.callbacks import Callback, Evaluator, TrainResult
from rl_training.runtime.envs import GivenEnv, Wrapper, env_maker, load_wrappers

GivenConfig = TrainConfig | str | os.PathLike[str]


def make_config(
    algo: str, class_name: str, config: GivenConfig | None, settings: Mapping[str, object]
) -> TrainConfig:
    """One config out of what the constructor was given; keywords find their own level."""
    given = by_level(settings)
    if config is None:
        base: State = {"algo": algo}
    elif isinstance(config, TrainConfig):
        base = config.to_dict()
    elif isinstance(config, str | os.PathLike):
        base = load_config(config).to_dict()
    else:
        raise ConfigError(
            "config must be a TrainConfig, the name or path of a config, or left out for settings, "
            f"got {config!r}"
        )
    if base["algo"] != algo:
        raise ConfigError(f"algo must be {algo!r} for {class_name}, got {base['algo']!r}")
    if isinstance(config, TrainConfig) and not settings:
        return config
    kwargs = {**base.get("algo_kwargs", {}), **given["algo_kwargs"]}
    return parse_config({**base, **given, "algo_kwargs": kwargs})


def by_level(settings: Mapping[str, object]) -> State:
    """Settings at their places in a config: those of the run, and `algo_kwargs`."""
    run_level = TrainConfig.model_fields
    given: State = {name: value for name, value in settings.items() if name in run_level}
    own = {name: value for name, value in settings.items() if name not in run_level}
    return {**given, "algo_kwargs": {**given.get("algo_kwargs", {}), **own}}


class ManagedAlgorithm:
    """`SAC(config).learn()`, then `.evaluate()`, `.predict(obs)`, `.save(path)`; `SAC.load(path)` later.

    Takes a `TrainConfig`, the name or path of a config (`"sac/pendulum"`), settings as keywords, or a config
    and settings that change it. `env` is an id, a Gymnasium environment, or a function that makes one.
    """

    algo: ClassVar[str]
    acts_by_its_policy: ClassVar[bool] = True
    """`judge` may ask `policy` in its place"""

    def __init__(
        self,
        config: GivenConfig | None = None,
        *,
        env: GivenEnv | None = None,
        wrappers: Sequence[Wrapper] | None = None,
        **settings: object,
    ) -> None:
        self.env = None if env is None or isinstance(env, str) else env_maker(env)
        self.wrappers = wrappers
        if env is not None:
            settings["env_id"] = env if isinstance(env, str) else str(self.env)
        self.config = make_config(self.algo, type(self).__name__, config, settings)
        self.result: TrainResult | None = None
        self._live: LiveSession | None = None
        self._run: SavedRun | None = None
        """What was trained or loaded; acting does not read its file again"""
        self._loaded = False
        """Whether the config comes from a file, which is not trusted with code, paths, windows or trackers"""
        self._env_kwargs: Facts | None = None
        """What the user gave in place of the file's"""

    def learn(
        self,
        dataset: GivenData | None = None,
        callbacks: Sequence[Callback] | None = None,
        *,
        columns: Mapping[str, object] | None = None,
        total_timesteps: int | None = None,
        env: GivenEnv | None = None,
        evaluators: Sequence[Evaluator] | None = None,
        trackers: Sequence[Sink] | None = None,
        quiet: bool = False,
    ) -> TrainResult:
        """Train as the config says; a dataset given here replaces the config's recipe.

        A data frame needs `columns`, as `{"observations": ["T"], "actions": ["valve"], "reward": "score"}`; a
        path takes them too, where its columns have names of their own. Called again, it goes on from where it
        stopped, to a larger `total_timesteps`.
        """
        if env is not None:
            self.env = env_maker(env)
            self.config = self.config.replace(env_id=str(self.env))
        told: State = {}
        if isinstance(dataset, str | os.PathLike):
            told = {"dataset_kind": "auto", "dataset_path": os.fspath(dataset)}
            told |= {} if columns is None else {"columns": dict(columns)}
            self.config = self.config.replace(algo_kwargs={**self.config.algo_kwargs, **told})
            dataset = None
        options: RunOptions = {
            "dataset": None if dataset is None else as_dataset(dataset, columns),
            "callbacks": callbacks,
            "evaluators": evaluators,
            "trackers": trackers,
            "quiet": quiet,
        }
        if self.result is not None:
            result = self._go_on(total_timesteps, options)
        else:
            if total_timesteps is not None:
                self.config = self.config.replace(total_timesteps=total_timesteps)
            if self._loaded:
                self._check_loaded(told, in_memory=dataset is not None)
            options |= {"env": self.env, "wrappers": self.wrappers}
            result = train(self.config, **options)
        return self._trained_to(result)

    def _check_loaded(self, told: Facts, *, in_memory: bool) -> None:
        """Before a new run is made of a file's config: what it may not say, the user has said."""
        run = self._trained()
        if not in_memory:
            refuse_foreign_paths(run.file, self.config.algo_kwargs, told)
        maker, config = environment_for(self.config, run.facts.in_python, **self._surroundings())
        self.env, self.wrappers, self.config = maker, (), with_trackers(config, None)
        self._loaded = False

    def _surroundings(self) -> Surroundings:
        """Where the policy acts, as far as the user has said it."""
        if self._loaded:
            return {"env": self.env, "wrappers": self.wrappers, "env_kwargs": self._env_kwargs}
        wrappers = load_wrappers(self.config.wrappers) if self.wrappers is None else self.wrappers
        env = self.env or self.config.env_id
        return {"env": env, "wrappers": wrappers, "env_kwargs": self.config.env_kwargs}

    def _changes(self, settings: Facts) -> State:
        """Settings of a run that goes on from a file of this object, the user's word for all of them."""
        own = {} if self._loaded else {"trackers": self.config.trackers}
        kwargs = self._surroundings()["env_kwargs"]
        return {**own, **({} if kwargs is None else {"env_kwargs": kwargs}), **by_level(settings)}

    def _go_on(self, total: int | None, options: RunOptions) -> TrainResult:
        assert self.result is not None and self.result.checkpoint_path is not None
        done = int(self.result.metrics["global_step"])
        target = self.config.total_timesteps if total is None else total
        if target <= done:
            raise UserError(
                f"total_timesteps must be > {done}, the steps that this {type(self).__name__} has made, to "
                f"go on training, got {target}; call learn(total_timesteps={2 * done}), or make a new one"
            )
        said = self._surroundings()
        options |= {"env": said["env"], "wrappers": said["wrappers"]}
        return resume_training(
            self.result.checkpoint_path,
            total_timesteps=target,
            env_kwargs=said["env_kwargs"],
            tracker_names=self.config.trackers,
            **options,
        )

    def finetune(
        self,
        env: GivenEnv | None = None,
        timesteps: int = 20_000,
        *,
        dataset: GivenData | None = None,
        callbacks: Sequence[Callback] | None = None,
        evaluators: Sequence[Evaluator] | None = None,
        quiet: bool = False,
        **settings: object,
    ) -> TrainResult:
        """Go on learning in an environment for `timesteps` steps, from the trained policy, as a new run.

        `settings` change the run's, such as `offline_data="drop"` or `gradient_updates_per_step=4`.
        """
        if env is not None:
            self.env = env_maker(env)
        said = self._surroundings()
        result = finetune_checkpoint(
            self._file(),
            timesteps=timesteps,
            changes=self._changes(settings),
            dataset=None if dataset is None else as_dataset(dataset),
            callbacks=callbacks,
            evaluators=evaluators,
            env=said["env"],
            wrappers=said["wrappers"],
            quiet=quiet,
        )
        self._trained_to(result)
        self.config, self._loaded = self._trained().config, False
        return result

    def _file(self) -> Path:
        """The checkpoint that holds the learner of this object."""
        file = self._trained().file
        if not file.exists():
            raise UserError(f"the checkpoint {file} is gone: load() the run from where it is now")
        return file

    def evaluate(self, num_episodes: int | None = None, *, env: GivenEnv | None = None) -> State:
        """Episodes in the config's environment, or in `env`."""
        said = self._surroundings()
        if env is not None:
            said["env"] = env
        return evaluate_run(self._trained(), num_episodes, **said)

    def predict(self, obs: npt.ArrayLike, deterministic: bool = True) -> FloatArray:
        """Actions in the environment's units, for one observation or a batch."""
        return self.policy.predict(obs, deterministic)

    @property
    def policy(self) -> Policy:
        """The trained policy, an `nn.Module`: raw observations in, actions in the environment's units out."""
        return self._trained().policy

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write policy and learner to one `.safetensors` file, from which `load` makes this object again."""
        state = self._trained().checkpoint.read_run(skip=("replay", "collector", "exploration"))
        if self.policy.guard is not None:
            state = {**state, "policy": {**state["policy"], "guard": self.policy.guard.pack()}}
        save_checkpoint(Path(path), state)
        return Path(path)

    def make_guard(
        self, data: GivenData = "run", *, columns: Facts | None = None, **settings: object
    ) -> Guard:
        """Fit a guard that notices observations unlike `data` (default: what the run was trained on).

        It goes with the policy from now on: into `predict_guarded`, `export` and `save`. `settings` are
        those of `GuardConfig`, such as `fallback="hold"`.
        """
        run, policy = self._trained(), self.policy
        rows = os.fspath(data) if isinstance(data, str | os.PathLike) else as_dataset(data, columns)
        policy.guard = make_guard(rows, run, policy.spaces, settings).to(policy.device)
        return policy.guard

    def predict_guarded(self, obs: npt.ArrayLike | None) -> Decision:
        """Actions, how new their observations are (1 is the guard's limit), and which are beyond it."""
        return self.policy.predict_guarded(obs)

    def export(
        self, path: str | os.PathLike[str], *, format: str | None = None, distribution: bool = False
    ) -> Path:
        """Write the policy alone, to act without this package: `.onnx`, `.pt` (TorchScript), `.safetensors`.

        `distribution` adds mean and log_std of a stochastic policy; a guard that was made goes along. A model
        card is written beside the file.
        """
        run_dir = None if self.result is None else self.result.run_dir
        return export_policy(
            self.policy,
            self._trained().state,
            Path(path),
            format=format,
            distribution=distribution,
            run_dir=run_dir,
        )

    def save_policy(self, path: str | os.PathLike[str], *, distribution: bool = False) -> Path:
        """The `.safetensors` policy file that `rl_training.load_policy` opens with numpy alone."""
        return self.export(path, format="safetensors", distribution=distribution)

    # ---- learning in a loop of somebody else: `go_live`, then `act`, `observe`, `update` in turn

    def go_live(
        self,
        timesteps: int | None = None,
        *,
        dataset: GivenData | None = None,
        env: GivenEnv | None = None,
        callbacks: Sequence[Callback] | None = None,
        guard: Guard | None = None,
        **settings: object,
    ) -> LiveSession:
        """Begin to learn in a loop of your own, with `act`, `observe` and `update`; a run directory is made.

        `timesteps` are the steps that the loop will make. An object that was loaded from such a run goes on
        there. `env`, where there is a simulator, only evaluates. `guard`, as `make_guard` gives it, watches
        the observations and replaces what it flags by its fallback.
        """
        self._live = open_live(
            self._file(),
            timesteps=timesteps,
            changes=self._changes(settings),
            dataset=None if dataset is None else as_dataset(dataset),
            env=env,
            callbacks=callbacks,
            guard=guard,
        )
        return self._live

    def act(self, obs: npt.ArrayLike | None, *, first: bool = False) -> FloatArray:
        """The action to play now, in your own loop; `first` where an episode begins."""
        return self._session().act(obs, first=first)

    def observe(
        self,
        reward: float,
        next_obs: npt.ArrayLike | None,
        terminated: bool = False,
        truncated: bool = False,
        *,
        played: npt.ArrayLike | None = None,
    ) -> None:
        """What came of the last action; `played` where another one than that was played."""
        self._session().observe(reward, next_obs, terminated, truncated, played=played)

    def update(self) -> dict[str, float]:
        """Make the updates that are due; their metrics."""
        return self._session().update()

    def _session(self) -> LiveSession:
        if self._live is None:
            raise UserError("call go_live(timesteps=…) before act, observe and update")
        return self._live

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        env: GivenEnv | None = None,
        wrappers: Sequence[Wrapper] | None = None,
        env_kwargs: Facts | None = None,
    ) -> Self:
        """A trained object from a checkpoint file or run directory.

        What a file is not trusted with, an environment of a module or its wrappers and paths, is said here.
        """
        run = SavedRun(Path(path).absolute())
        if run.facts.algo != cls.algo:
            raise CheckpointError(
                f"{path} is a checkpoint of {run.facts.algo!r}, not of {cls.algo!r}; "
                f"load it with rl_training.{run.facts.algo_class}"
            )
        run.device = run.config.device
        loaded = cls(run.config, wrappers=wrappers)
        loaded.env = None if env is None else env_maker(env)
        loaded._loaded, loaded._env_kwargs = True, env_kwargs
        loaded._adopt(run)
        return loaded

    def _trained_to(self, result: TrainResult) -> TrainResult:
        assert result.checkpoint_path is not None
        self.result = result
        self._adopt(SavedRun(result.checkpoint_path.absolute(), device=self.config.device))
        return result

    def _adopt(self, run: SavedRun) -> None:
        """Take over the policy of a checkpoint; acting needs its file no more."""
        assert run.policy is not None  # read now
        self._run = run

    def _trained(self) -> SavedRun:
        if self._run is None:
            raise UserError(f"this {type(self).__name__} has no policy yet: call learn() or load() first")
        return self._run


def managed_class(algo: str, module: str) -> type[ManagedAlgorithm]:
    """The managed class of a registered algorithm, as it is found in a module."""
    recipe = ALGORITHMS.get(algo)
    members = {
        "algo": algo,
        "__doc__": f"Managed {recipe.class_name}. {ManagedAlgorithm.__doc__}",
        "__module__": module,
    }
    return type(recipe.class_name, (ManagedAlgorithm,), members)
