"""MOBILE (Sun et al. 2023, ICML): MOPO whose penalty is the members' disagreement on the Bellman target."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from torch import Tensor

from rl_training.algorithms.losses import named_tensors
from rl_training.algorithms.mopo import MOPO, MOPOConfig, MOPORunConfig, bellman_penalty, penalised_loss
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.models.dynamics import MLPModelBasedSACModel


class MOBILEConfig(MOPOConfig):
    """Keywords of MOBILE: MOPO's, with the defaults of its authors where they differ."""

    uncertainty: Literal["aleatoric", "bellman"] = setting(
        "bellman",
        "what an imagined reward is lowered by: the members' disagreement on the Bellman target, or the "
        "largest spread that a member predicts",
    )
    backup_entropy: bool = setting(False, "put SAC's entropy bonus into the Bellman target")


class MOBILE(MOPO):
    """MOPO with the penalty `bellman`."""

    config_class = MOBILEConfig
    config: MOBILEConfig


def mobile_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `member_targets` `(members, B)` and what `mopo.penalised_loss` takes."""
    return penalised_loss(inputs, bellman_penalty(named_tensors(inputs)["member_targets"]))


class MOBILERunConfig(MOBILEConfig, MOPORunConfig):
    """Every setting of a MOBILE run."""


RECIPE = Recipe("mobile", MOBILE, MLPModelBasedSACModel, MOBILERunConfig, title="MOBILE")
