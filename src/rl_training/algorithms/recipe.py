"""A recipe: an algorithm as one registered part, with everything a run needs to know of it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from math import prod

import torch

from rl_training.algorithms.learner import Learner
from rl_training.config import ConfigModel
from rl_training.config.run import ControlFields, OnlineFields, RewardFields
from rl_training.core.errors import ConfigError
from rl_training.core.registry import ALGORITHMS
from rl_training.core.spaces import MOST_COMBINATIONS, ActionKind, Box, Choice, Spaces
from rl_training.core.streams import torch_generator
from rl_training.core.transforms import ObservationNormalizer
from rl_training.core.types import PENALTIES, Facts, State
from rl_training.models.models import PolicyModel
from rl_training.policies.policy import pack_policy


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

    def needs(self, settings: ConfigModel) -> frozenset[str]:
        """Batch fields beyond the five standard ones that a run with these settings takes."""
        apart = self.learner.pays_penalties and isinstance(settings, RewardFields) and settings.penalty
        return self.learner.needs | ({PENALTIES} if apart else set())

    def build_learner(
        self,
        settings: ControlFields,
        spaces: Spaces,
        *,
        seed: int = 0,
        device: torch.device | str = "cpu",
    ) -> Learner:
        """A fresh model and learner; weights are drawn on the CPU, so a seed means the same everywhere."""
        self.check_actions(spaces)
        generator = torch_generator(seed, "init")
        model = self.model.from_config(settings, spaces, generator).to(device)
        keywords = {name: getattr(settings, name) for name in self.learner.config_class.model_fields}
        return self.learner(model, seed=seed, **keywords)

    def check_actions(self, spaces: Spaces) -> None:
        """Refuse actions that the learner has no maths for, and say what has."""
        kind, takes = spaces.kind, self.learner.takes_actions
        if kind in takes:
            return
        able = [name for name in ALGORITHMS.names() if kind in get_recipe(name).learner.takes_actions]
        raise ConfigError(
            f"algo {self.name} takes only {' or '.join(ACTION_WORDS[each] for each in takes)}, and "
            f"{in_the_way(spaces, takes)}; algorithms that take {ACTION_WORDS[kind]}: "
            f"{', '.join(able) or 'none of those built in or installed'}"
        )

    def upgrade(self, state: State) -> State:
        """A checkpoint of format 1 as format 2 holds it.

        Settings are renamed, the policy is packed, callbacks are keyed by their place.
        """
        config = {**state["config"], "algo_kwargs": renamed(self.name, state["config"]["algo_kwargs"])}
        settings = self.settings.build(config["algo_kwargs"], where="algo_kwargs")
        spaces = Spaces.from_dict(state["spaces"])
        learner = self.build_learner(settings, spaces, seed=config["seed"])
        learner.load_state_dict(state["learner"])
        normalizer = state["normalizer"]
        steps = [] if normalizer is None else [ObservationNormalizer.from_state_dict(normalizer)]
        learner.policy.set_units(spaces, steps)
        gone = ("normalizer", "spaces", "dataset_in_python")
        return {
            **{key: value for key, value in state.items() if key not in gone},
            "format_version": 2,
            "config": config,
            "policy": pack_policy(learner.policy),
            "algo_package": None,
            "in_python": ["dataset"] if state["dataset_in_python"] else [],
            "callbacks": {f"{name}.0": saved for name, saved in state["callbacks"].items()},
        }


ACTION_WORDS: dict[ActionKind, str] = {
    "numbers": "continuous actions",
    "choices": "choices",
    "many choices": f"choices with more than {MOST_COMBINATIONS} combinations of levels",
    "mixtures": "mixtures of both",
}


def in_the_way(spaces: Spaces, takes: Collection[ActionKind]) -> str:
    """What of an action is not taken, in words."""
    if spaces.kind == "many choices" and "choices" in takes:
        return f"these levels have {prod(spaces.levels)} combinations"
    odd = Choice if "numbers" in takes else Box
    index, part = next((index, part) for index, part in enumerate(spaces.parts) if isinstance(part, odd))
    return f"action {index} is {part}"


ORTHOGONAL = {"iql": "orthogonal"}
"""What `orthogonal_init` stood for; the other algorithms made the outputs small as well."""


def renamed(algo: str, given: Facts) -> State:
    """Settings by today's names."""
    settings = dict(given)
    if "layer_norm" in settings:
        settings["critic_layer_norm"] = settings.pop("layer_norm")
    if "orthogonal_init" in settings:
        small = ORTHOGONAL.get(algo, "orthogonal_small")
        settings["init"] = small if settings.pop("orthogonal_init") else "torch"
    if settings.pop("small_output_init", False):
        settings["init"] = "small_output"
    return settings


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
