"""An algorithm by name, with what can be done with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from rl_training.algorithms.recipe import Recipe, get_recipe, register_algorithm
from rl_training.core.registry import ALGORITHMS, algorithm_names
from rl_training.core.spaces import FloatArray
from rl_training.core.types import State
from rl_training.runs.evaluate import evaluate_checkpoint, predict_checkpoint
from rl_training.runs.train import TrainFunction, train_function

__all__ = ["ALGORITHMS", "AlgorithmSpec", "algorithm_names", "get_algorithm_spec", "register_algorithm"]


@dataclass(frozen=True)
class AlgorithmSpec:
    """`train_fn(config)`, `evaluate_fn(checkpoint)`, `predict_fn(checkpoint, obs)`."""

    recipe: Recipe

    @property
    def name(self) -> str:
        return self.recipe.name

    @property
    def class_name(self) -> str:
        return self.recipe.class_name

    @property
    def kind(self) -> Literal["online", "offline"]:
        return "online" if self.recipe.online else "offline"

    @property
    def train_fn(self) -> TrainFunction:
        return train_function(self.name)

    @property
    def evaluate_fn(self) -> Callable[..., State]:
        return evaluate_checkpoint

    @property
    def predict_fn(self) -> Callable[..., FloatArray]:
        return predict_checkpoint


def get_algorithm_spec(name: str) -> AlgorithmSpec:
    """Look an algorithm up by name; an unknown one is a mistake of the config."""
    return AlgorithmSpec(get_recipe(name))
