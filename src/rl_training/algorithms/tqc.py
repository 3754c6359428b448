"""Truncated quantile critics (Kuznetsov et al. 2020, arXiv:2005.04269)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Self

import torch
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.learner import Batch, MetricTensors, Noise
from rl_training.algorithms.recipe import Recipe
from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.config import setting
from rl_training.config.data import OnlineDataFields
from rl_training.config.run import OnlineFields
from rl_training.core.errors import ConfigError
from rl_training.models.models import MLPTQCModel, TQCNetworkConfig


class TQCConfig(SACConfig):
    """Keywords of TQC beside SAC's."""

    top_quantiles_to_drop_per_net: int = setting(
        2, "largest pooled atoms left out of the target, times the critics; more is more pessimistic", ge=0
    )
    kappa: float = setting(1.0, "error at which the quantile loss turns from quadratic to linear", gt=0)
    actor_reduce: losses.Reduction = setting(
        "mean", "the actor climbs the minimum or mean of the critics' mean quantiles"
    )


class TQC(SAC):
    """SAC whose critics are distributions; the target leaves out their most optimistic atoms."""

    config_class = TQCConfig
    config: TQCConfig
    takes_actions = ("numbers",)
    model_sizes = ("num_critics", "num_quantiles")

    def setup(self) -> None:
        super().setup()
        check_drop(self.config.top_quantiles_to_drop_per_net, self.critic.num_outputs)

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, MetricTensors]:
        """Quantile regression of every critic on the truncated mixture."""
        with torch.no_grad():
            atoms = self.value_target(batch, noise)
        current = self.critic(batch["obs"], batch["actions"])
        loss = losses.quantile_huber(current, atoms, self.config.kappa)
        return loss, {"target_q_mean": atoms.mean((-1, -2))}

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """Atoms of the target distribution, `[*S, B, M]`, the next action drawn from the online actor."""
        next_actions, logprobs = self.actor(batch["next_obs"], noise["next"])
        next_quantiles = self.target_critic(batch["next_obs"], next_actions)
        kept = losses.smallest_atoms(next_quantiles, self.config.top_quantiles_to_drop_per_net)
        return losses.soft_target_atoms(
            kept, batch["rewards"], batch["dones"], logprobs, self.alpha(), self.discount(batch)
        )

    def actor_value(self, obs: Tensor, actions: Tensor) -> Tensor:
        """The mean of all quantiles, none left out."""
        return losses.reduce_critics(self.critic(obs, actions).mean(-1), self.config.actor_reduce)


def check_drop(drop: int, count: int) -> None:
    if drop >= count:
        raise ConfigError(f"top_quantiles_to_drop_per_net must be < num_quantiles ({count}), got {drop}")


def tqc_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `critic_quantiles (B, N, K) target_quantiles (B, M) sampled_logprobs sampled_q_values alpha`.

    `sampled_q_values` `(B,)` are the means of all quantiles at the policy's actions; `kappa` defaults to 1.
    """
    named = losses.named_tensors(inputs)
    current, atoms = named["critic_quantiles"].movedim(-2, -3), named["target_quantiles"]
    return losses.soft_policy_losses(named, named["sampled_q_values"]) | {
        "critic_loss": losses.quantile_huber(current, atoms, float(inputs.get("kappa", 1.0))),
        "target_q_mean": atoms.mean(),
    }


class TQCRunConfig(TQCConfig, TQCNetworkConfig, OnlineFields, OnlineDataFields):
    """Every setting of a TQC run."""

    @model_validator(mode="after")
    def _some_atoms_stay(self) -> Self:
        check_drop(self.top_quantiles_to_drop_per_net, self.num_quantiles)
        return self


RECIPE = Recipe(
    "tqc", TQC, MLPTQCModel, TQCRunConfig, title="Truncated quantile critics", papers=("2005.04269",)
)
