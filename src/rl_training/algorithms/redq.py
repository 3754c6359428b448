"""Randomised ensembled double Q-learning (Chen et al. 2021, arXiv:2101.05982)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Self

import torch
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.learner import Batch, Noise, NoiseShapes
from rl_training.algorithms.losses import check_subset, chosen_members, random_subset, values_of
from rl_training.algorithms.recipe import Recipe
from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.config import setting
from rl_training.config.data import OnlineDataFields
from rl_training.config.run import OnlineFields
from rl_training.core.schema import MAX_SAMPLES
from rl_training.models.models import MLPREDQModel, REDQNetworkConfig


class REDQConfig(SACConfig):
    """Keywords of REDQ beside SAC's."""

    subset_size: int = setting(2, "critics drawn anew per update (M); the target takes their minimum", ge=1)
    policy_delay: int = setting(20, "actor, temperature: one update in this many critic updates", ge=1)
    actor_reduce: losses.Reduction = setting("mean", "the actor climbs the minimum or mean of all critics")


class REDQ(SAC):
    """SAC with N critics, targets from a random few of them, and many updates per environment step."""

    config_class = REDQConfig
    config: REDQConfig
    takes_actions = ("numbers",)
    delayed_metrics = ("actor_loss", "entropy_term")
    # The authors take the actor's gradient before the critics' step.
    critic_moves_first: ClassVar[bool] = False
    model_sizes = ("num_critics",)

    def setup(self) -> None:
        super().setup()
        check_subset(self.config.subset_size, self.critic.num_critics)

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {**super().noise_shapes(batch_size), "subset": ("uniform", (self.critic.num_critics,))}

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """SAC's target from the minimum over one random subset, shared by the batch and by all critics."""
        next_actions, logprobs = self.actor(batch["next_obs"], noise["next"])
        subset = random_subset(noise["subset"], self.config.subset_size)
        next_q = values_of(
            self.target_critic, lambda p: chosen_members(p, subset), batch["next_obs"], next_actions
        )
        next_value = losses.soft_value(losses.reduce_critics(next_q, "min"), logprobs, self.alpha())
        return losses.td_target(batch["rewards"], batch["dones"], next_value, self.discount(batch))


def _sample_target_critic_indices(
    *, num_critics: int, subset_size: int, generator: torch.Generator | None = None
) -> Tensor:
    """The draw of one update on its own: `subset_size` distinct critics as a `(subset_size,)` LongTensor."""
    return random_subset(torch.rand(num_critics, generator=generator), subset_size)


def redq_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `critic_q_values (B, N) target_q_values sampled_logprobs sampled_q_values alpha`.

    `sampled_q_values` are those of all critics, `(B, N)`, or their mean, `(B,)`.
    """
    named = losses.named_tensors(inputs)
    sampled_q = named["sampled_q_values"]
    if sampled_q.dim() == 2:
        sampled_q = losses.reduce_critics(sampled_q.mT, "mean")
    return losses.soft_policy_losses(named, sampled_q) | {
        "critic_loss": losses.critic_mse(named["critic_q_values"].mT, named["target_q_values"]),
        "target_q_mean": named["target_q_values"].mean(-1),
    }


class REDQRunConfig(REDQConfig, REDQNetworkConfig, OnlineFields, OnlineDataFields):
    """Every setting of a REDQ run."""

    gradient_updates_per_step: int = setting(
        20, "updates per collected transition (G)", ge=1, most=MAX_SAMPLES
    )

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        check_subset(self.subset_size, self.num_critics)
        return self


RECIPE = Recipe(
    "redq", REDQ, MLPREDQModel, REDQRunConfig, title="Randomized ensembled double Q", papers=("2101.05982",)
)
