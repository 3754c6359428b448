"""Managed classes: one object that learns, evaluates, predicts, saves and loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy.typing as npt

from rl_training.core.checkpoints import load_checkpoint, save_checkpoint
from rl_training.core.errors import CheckpointError, ConfigError, UserError
from rl_training.core.registry import ALGORITHMS, get_algorithm_spec
from rl_training.core.spaces import FloatArray
from rl_training.core.train_config import TrainConfig
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.exporting import export_policy
from rl_training.experiment.workflows import NOT_FOR_ACTING, evaluate_state, policy_from_state, saved_config
from rl_training.policies.policy import Policy
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.run import TrainResult


class ManagedAlgorithm:
    """`SAC(config).learn()`, then `.evaluate()`, `.predict(obs)`, `.save(path)`; `SAC.load(path)` later."""

    algo: ClassVar[str]

    def __init__(self, config: TrainConfig) -> None:
        if config.algo != self.algo:
            raise ConfigError(f"algo must be {self.algo!r} for {type(self).__name__}, got {config.algo!r}")
        self.config = config
        self.result: TrainResult | None = None
        self._state: dict[str, Any] | None = None
        self._policy: Policy | None = None

    def learn(
        self,
        dataset: TransitionDataset | None = None,
        callbacks: Sequence[Callback] | None = None,
        *,
        quiet: bool = False,
    ) -> TrainResult:
        """Train as the config says; a dataset in memory replaces the config's recipe."""
        train = get_algorithm_spec(self.algo).train_fn
        result: TrainResult = train(self.config, dataset=dataset, callbacks=callbacks, quiet=quiet)
        assert result.checkpoint_path is not None
        self.result = result
        self._adopt(load_checkpoint(result.checkpoint_path, skip=NOT_FOR_ACTING))
        return result

    def evaluate(self, num_episodes: int | None = None) -> dict[str, Any]:
        """Episodes in the config's environment."""
        return evaluate_state(self._trained()[0], num_episodes=num_episodes, device=self.config.device)

    def predict(self, obs: npt.ArrayLike, deterministic: bool = True) -> FloatArray:
        """Actions in the environment's units, for one observation or a batch."""
        return self._trained()[1].predict(obs, deterministic)

    def save(self, path: str | Path) -> Path:
        """Write the policy and the learner to one `.safetensors` file."""
        save_checkpoint(path, self._trained()[0])
        return Path(path)

    def export(self, path: str | Path, *, format: str | None = None, distribution: bool = False) -> Path:
        """Write the policy alone, to act without this package: `.onnx`, `.pt` (TorchScript), `.safetensors`.

        `distribution` adds mean and log_std of a stochastic policy. A model card is written beside the file.
        """
        state, policy = self._trained()
        run_dir = None if self.result is None else self.result.run_dir
        return export_policy(policy, state, path, format=format, distribution=distribution, run_dir=run_dir)

    def save_policy(self, path: str | Path, *, distribution: bool = False) -> Path:
        """The `.safetensors` policy file that `rl_training.load_policy` opens with numpy alone."""
        return self.export(path, format="safetensors", distribution=distribution)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """A trained object from a checkpoint file or run directory."""
        state = load_checkpoint(path, skip=NOT_FOR_ACTING)
        if state["algo"] != cls.algo:
            raise CheckpointError(
                f"{path} is a checkpoint of {state['algo']!r}, not of {cls.algo!r}; "
                f"load it with rl_training.{state['algo_class']}"
            )
        loaded = cls(saved_config(state))
        loaded._adopt(state)
        return loaded

    def _adopt(self, state: dict[str, Any]) -> None:
        self._state, self._policy = state, policy_from_state(state, self.config.device)

    def _trained(self) -> tuple[dict[str, Any], Policy]:
        if self._state is None or self._policy is None:
            raise UserError(f"this {type(self).__name__} has no policy yet: call learn() or load() first")
        return self._state, self._policy


def _managed_class(algo: str, class_name: str) -> type[ManagedAlgorithm]:
    members = {
        "algo": algo,
        "__doc__": f"Managed {class_name}. {ManagedAlgorithm.__doc__}",
        "__module__": __name__,
    }
    return type(class_name, (ManagedAlgorithm,), members)


MANAGED = {entry.class_name: _managed_class(name, entry.class_name) for name, entry in ALGORITHMS.items()}


def __getattr__(name: str) -> type[ManagedAlgorithm]:
    if name not in MANAGED:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return MANAGED[name]
