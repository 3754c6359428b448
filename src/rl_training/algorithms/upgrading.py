"""Checkpoints of file format 1, which had no policy of their own and other names for some settings."""

from __future__ import annotations

from rl_training.algorithms.recipe import Recipe
from rl_training.core.plain import Facts, State
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import ObservationNormalizer
from rl_training.policies.packing import pack_policy

ORTHOGONAL = {"iql": "orthogonal"}
"""What `orthogonal_init` stood for; the other algorithms made the outputs small as well."""


def upgraded(recipe: Recipe, state: Facts) -> State:
    """The state as format 2 holds it: settings renamed, the policy packed, callbacks keyed by their place."""
    config = {**state["config"], "algo_kwargs": renamed(recipe.name, state["config"]["algo_kwargs"])}
    settings = recipe.settings.build(config["algo_kwargs"], where="algo_kwargs")
    spaces = Spaces.from_dict(state["spaces"])
    learner = recipe.build_learner(settings, spaces.obs_dim, spaces.action_dim, seed=config["seed"])
    learner.load_state_dict(state["learner"])
    normalizer = state["normalizer"]
    steps = [] if normalizer is None else [ObservationNormalizer.from_state_dict(normalizer)]
    learner.policy.set_units(spaces, steps)
    kept = {
        key: value for key, value in state.items() if key not in ("normalizer", "spaces", "dataset_in_python")
    }
    return {
        **kept,
        "format_version": 2,
        "config": config,
        "policy": pack_policy(learner.policy),
        "algo_package": None,
        "in_python": ["dataset"] if state["dataset_in_python"] else [],
        "callbacks": {f"{name}.0": saved for name, saved in state["callbacks"].items()},
    }


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
