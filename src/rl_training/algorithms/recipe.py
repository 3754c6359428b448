"""A recipe: an algorithm as one registered part, with everything a run needs to know of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from rl_training.algorithms.learner import Learner
from rl_training.config.run_fields import ControlFields, OnlineFields
from rl_training.core.algorithms import ALGORITHMS
from rl_training.core.errors import ConfigError
from rl_training.core.plain import State
from rl_training.core.streams import torch_generator
from rl_training.models.models import PolicyModel


@dataclass(frozen=True)
class Recipe:
    """`settings` is the class of a run's `algo_kwargs`: the learner's, the model's, the data's.

    A class that extends `OnlineFields` makes an algorithm that collects its own data, one that extends
    `OfflineFields` learns from a dataset.
    """

    name: str
    learner: type[Learner]
    model: type[PolicyModel]
    settings: type[ControlFields]
    title: str = ""
    papers: tuple[str, ...] = ()
    """arXiv numbers"""

    def __post_init__(self) -> None:
        for part in (self.learner.config_class, self.model.config_class):
            missing = [name for name in part.model_fields if name not in self.settings.model_fields]
            if missing:
                raise ConfigError(
                    f"recipe {self.name!r}: settings must extend {part.__name__}, "
                    f"{self.settings.__name__} lacks {', '.join(missing)}"
                )

    @property
    def class_name(self) -> str:
        return self.learner.__name__

    @property
    def online(self) -> bool:
        return issubclass(self.settings, OnlineFields)

    def build_learner(
        self,
        settings: ControlFields,
        obs_dim: int,
        action_dim: int,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> Learner:
        """A fresh model and learner; weights are drawn on the CPU, so a seed means the same everywhere."""
        generator = torch_generator(seed, "init")
        model = self.model.from_config(settings, obs_dim, action_dim, generator).to(device)
        keywords = {name: getattr(settings, name) for name in self.learner.config_class.model_fields}
        return self.learner(model, seed=seed, **keywords)

    def upgrade(self, state: State) -> State:
        """The state of a checkpoint of an earlier file format, as today's would hold it."""
        from rl_training.algorithms.upgrading import upgraded  # needed for old files alone

        return upgraded(self, state)


def register_algorithm(recipe: Recipe) -> None:
    """Make an algorithm known under its recipe's name, for configs, the command line and files."""
    if not isinstance(recipe, Recipe):
        raise ConfigError(f"register_algorithm takes a Recipe, got {recipe!r}")
    ALGORITHMS.register(recipe.name, recipe)


def get_recipe(name: str) -> Recipe:
    """The recipe of that name."""
    recipe = ALGORITHMS.get(name)
    if not isinstance(recipe, Recipe):
        raise ConfigError(f"algo {name!r} must be a Recipe, the package that offers it gives {recipe!r}")
    return recipe
