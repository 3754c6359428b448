"""The algorithms, one line each. Entries are import strings: looking one up by name imports nothing heavy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, Literal

from rl_training.config.wording import did_you_mean
from rl_training.core.errors import ConfigError

Kind = Literal["online", "offline"]


@dataclass(frozen=True)
class AlgorithmEntry:
    """Where the parts of an algorithm live; `module` is the `<algo>` of every file name."""

    class_name: str
    module: str
    kind: Kind

    @property
    def recipe(self) -> str:
        return f"rl_training.runtime.{self.module}_trainer:RECIPE"

    @property
    def train(self) -> str:
        return f"rl_training.runtime.{self.module}_trainer:train_{self.module}"


def entry(class_name: str, module: str, *, kind: Kind) -> AlgorithmEntry:
    """One line of the registry."""
    return AlgorithmEntry(class_name, module, kind)


ALGORITHMS: dict[str, AlgorithmEntry] = {
    "sac": entry("SAC", "sac", kind="online"),
    "tqc": entry("TQC", "tqc", kind="online"),
    "redq": entry("REDQ", "redq", kind="online"),
    "bc": entry("BC", "bc", kind="offline"),
    "td3_bc": entry("TD3BC", "td3_bc", kind="offline"),
    "awac": entry("AWAC", "awac", kind="offline"),
    "crr": entry("CRR", "crr", kind="offline"),
    "iql": entry("IQL", "iql", kind="offline"),
    "cql": entry("CQL", "cql", kind="offline"),
    "cal_ql": entry("CalQL", "cal_ql", kind="offline"),
}


@dataclass(frozen=True)
class AlgorithmSpec:
    """An algorithm whose parts are imported when they are first asked for."""

    name: str
    entry: AlgorithmEntry

    @property
    def kind(self) -> Kind:
        return self.entry.kind

    @property
    def class_name(self) -> str:
        return self.entry.class_name

    @cached_property
    def recipe(self) -> Any:
        return load_object(self.entry.recipe)

    @cached_property
    def train_fn(self) -> Callable[..., Any]:
        return _function(self.entry.train)

    @cached_property
    def evaluate_fn(self) -> Callable[..., Any]:
        return _function("rl_training.experiment.workflows:evaluate_checkpoint")

    @cached_property
    def predict_fn(self) -> Callable[..., Any]:
        return _function("rl_training.experiment.workflows:predict_checkpoint")

    @property
    def learner(self) -> Any:
        """The learner class."""
        return self.recipe.learner

    @property
    def config_class(self) -> Any:
        """The class of the run's typed settings (a `ConfigModel`)."""
        return self.recipe.config


def algorithm_names() -> tuple[str, ...]:
    """Names in the order of the registry."""
    return tuple(ALGORITHMS)


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """Look an algorithm up by name; an unknown one is a mistake of the config."""
    if name not in ALGORITHMS:
        raise ConfigError(_unknown(name))
    return AlgorithmSpec(name, ALGORITHMS[name])


def load_object(reference: str) -> Any:
    """Import `package.module:name`."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


def _function(reference: str) -> Callable[..., Any]:
    function: Callable[..., Any] = load_object(reference)
    return function


def _unknown(name: str) -> str:
    hint = did_you_mean(name.lower().replace("-", "_"), ALGORITHMS)
    return f"algo must be one of {', '.join(ALGORITHMS)}, got {name!r}{hint}"
