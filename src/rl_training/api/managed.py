"""The object behind every managed class: it learns, evaluates, predicts, saves and loads."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar, Self

import numpy.typing as npt

from rl_training.api.inputs import GivenConfig, GivenData, as_dataset, by_level, make_config, with_data
from rl_training.api.live import LearnsLive
from rl_training.core.algorithms import ALGORITHMS
from rl_training.core.checkpoints import load_run_state, resolve_checkpoint, save_checkpoint
from rl_training.core.devices import choose_device
from rl_training.core.errors import CheckpointError, UserError
from rl_training.core.plain import Facts, State
from rl_training.core.spaces import FloatArray
from rl_training.experiment.exporting import export_policy
from rl_training.experiment.finetuning import finetune_checkpoint
from rl_training.experiment.guarding import make_guard
from rl_training.experiment.logging import Sink
from rl_training.experiment.run_options import RunOptions
from rl_training.experiment.training import train
from rl_training.experiment.workflows import evaluate_state, resume_training, saved_config
from rl_training.policies.guard import Guard
from rl_training.policies.guarding import Guarded
from rl_training.policies.policy import Policy
from rl_training.policies.saved import NOT_FOR_ACTING, policy_of_state
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.environments import GivenEnv, Wrapper, env_maker
from rl_training.runtime.run import Evaluator, TrainResult


class ManagedAlgorithm(LearnsLive):
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
        self._state: State | None = None
        self._policy: Policy | None = None
        self._source: Path | None = None

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
        if isinstance(dataset, str | os.PathLike):
            self.config = with_data(self.config, dataset, columns)
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
            options |= {"env": self.env, "wrappers": self.wrappers}
            result = train(self.config, **options)
        assert result.checkpoint_path is not None
        self.result = result
        self._adopt(result.checkpoint_path)
        return result

    def _go_on(self, total: int | None, options: RunOptions) -> TrainResult:
        assert self.result is not None and self.result.checkpoint_path is not None
        done = int(self.result.metrics["global_step"])
        target = self.config.total_timesteps if total is None else total
        if target <= done:
            raise UserError(
                f"total_timesteps must be > {done}, the steps that this {type(self).__name__} has made, to "
                f"go on training, got {target}; call learn(total_timesteps={2 * done}), or make a new one"
            )
        options |= {"env": self.env or self.config.env_id, "wrappers": self.wrappers or ()}
        return resume_training(self.result.checkpoint_path, total_timesteps=target, **options)

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
        result = finetune_checkpoint(
            self._file(),
            timesteps=timesteps,
            changes=by_level(settings),
            dataset=None if dataset is None else as_dataset(dataset),
            callbacks=callbacks,
            evaluators=evaluators,
            env=self.env or self.config.env_id,
            wrappers=self.wrappers or (),
            quiet=quiet,
        )
        assert result.checkpoint_path is not None
        self.result = result
        self._adopt(result.checkpoint_path)
        self.config = saved_config(self._trained()[0])
        return result

    def _file(self) -> Path:
        """The checkpoint that holds the learner of this object."""
        self._trained()
        if self._source is None or not self._source.exists():
            raise UserError(f"the checkpoint {self._source} is gone: load() the run from where it is now")
        return self._source

    def evaluate(self, num_episodes: int | None = None, *, env: GivenEnv | None = None) -> State:
        """Episodes in the config's environment, or in `env`."""
        return evaluate_state(
            self._trained()[0],
            num_episodes=num_episodes,
            device=self.config.device,
            env=env or self.env or self.config.env_id,
            wrappers=self.wrappers or (),
        )

    def predict(self, obs: npt.ArrayLike, deterministic: bool = True) -> FloatArray:
        """Actions in the environment's units, for one observation or a batch."""
        return self._trained()[1].predict(obs, deterministic)

    @property
    def policy(self) -> Policy:
        """The trained policy, an `nn.Module`: raw observations in, actions in the environment's units out."""
        return self._trained()[1]

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write policy and learner to one `.safetensors` file, from which `load` makes this object again."""
        state, policy = self._trained()
        if self._source is not None and self._source.exists():  # only the file has the learner
            state = load_run_state(self._source, skip=("replay", "collector", "exploration"))
        if policy.guard is not None:
            state = {**state, "policy": {**state["policy"], "guard": policy.guard.pack()}}
        save_checkpoint(Path(path), state)
        return Path(path)

    def make_guard(
        self, data: GivenData = "run", *, columns: Facts | None = None, **settings: object
    ) -> Guard:
        """Fit a guard that notices observations unlike `data` (default: what the run was trained on).

        It goes with the policy from now on: into `predict_guarded`, `export` and `save`. `settings` are
        those of `GuardConfig`, such as `fallback="hold"`.
        """
        state, policy = self._trained()
        rows = os.fspath(data) if isinstance(data, str | os.PathLike) else as_dataset(data, columns)
        policy.guard = make_guard(rows, state, policy.spaces, settings).to(policy.device)
        return policy.guard

    def predict_guarded(self, obs: npt.ArrayLike) -> Guarded:
        """Actions, how new their observations are (1 is the guard's limit), and which are beyond it."""
        return self._trained()[1].predict_guarded(obs)

    def export(
        self, path: str | os.PathLike[str], *, format: str | None = None, distribution: bool = False
    ) -> Path:
        """Write the policy alone, to act without this package: `.onnx`, `.pt` (TorchScript), `.safetensors`.

        `distribution` adds mean and log_std of a stochastic policy; a guard that was made goes along. A model
        card is written beside the file.
        """
        state, policy = self._trained()
        run_dir = None if self.result is None else self.result.run_dir
        return export_policy(
            policy, state, Path(path), format=format, distribution=distribution, run_dir=run_dir
        )

    def save_policy(self, path: str | os.PathLike[str], *, distribution: bool = False) -> Path:
        """The `.safetensors` policy file that `rl_training.load_policy` opens with numpy alone."""
        return self.export(path, format="safetensors", distribution=distribution)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """A trained object from a checkpoint file or run directory."""
        state = load_run_state(Path(path), skip=NOT_FOR_ACTING)
        if state["algo"] != cls.algo:
            raise CheckpointError(
                f"{path} is a checkpoint of {state['algo']!r}, not of {cls.algo!r}; "
                f"load it with rl_training.{state['algo_class']}"
            )
        loaded = cls(saved_config(state))
        loaded._adopt(resolve_checkpoint(Path(path)), state)
        return loaded

    def _adopt(self, source: Path, state: State | None = None) -> None:
        """Take over the policy of a checkpoint; acting needs its file no more."""
        self._source = source.absolute()
        self._state = state = load_run_state(source, skip=NOT_FOR_ACTING) if state is None else state
        self._policy = policy_of_state(state, choose_device(self.config.device))

    def _trained(self) -> tuple[State, Policy]:
        if self._state is None or self._policy is None:
            raise UserError(f"this {type(self).__name__} has no policy yet: call learn() or load() first")
        return self._state, self._policy


def managed_class(algo: str) -> type[ManagedAlgorithm]:
    """The managed class of a registered algorithm."""
    recipe = ALGORITHMS.get(algo)
    members = {
        "algo": algo,
        "__doc__": f"Managed {recipe.class_name}. {ManagedAlgorithm.__doc__}",
        "__module__": "rl_training.api.algorithms",
    }
    return type(recipe.class_name, (ManagedAlgorithm,), members)
