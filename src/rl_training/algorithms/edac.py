"""SAC-N and EDAC (An et al. 2021, arXiv:2110.01548): offline SAC with many critics that must differ."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.learner import Batch, MetricTensors, Noise
from rl_training.algorithms.recipe import Recipe
from rl_training.algorithms.sac import SAC, SACConfig
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.core.errors import ConfigError
from rl_training.models.models import EDACNetworkConfig, MLPEDACModel

SMALLEST_SLOPE = 1e-10
"""Added to the length of a slope before dividing by it, as in the authors' code."""


class EDACConfig(SACConfig):
    """Keywords of EDAC beside SAC's."""

    eta: float = setting(
        1.0, "weight of the similarity of the critics' action gradients; 0 is SAC-N, and cheaper", ge=0
    )


class EDAC(SAC):
    """SAC on a dataset: the minimum of N critics is the caution, `eta` lets fewer of them do."""

    config_class = EDACConfig
    config: EDACConfig
    takes_actions = ("numbers",)

    def setup(self) -> None:
        super().setup()
        if self.config.eta and self.critic.num_critics < 2:
            raise ConfigError(
                f"num_critics must be >= 2 with eta > 0 (critics are compared), got {self.critic.num_critics}"
            )

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        """Temperature, actor, critics, targets: the authors' order, each sees what moved before it."""
        metrics: MetricTensors = {}
        if stage != "critic":
            actions, logprobs = self.actor(batch["obs"], noise["current"])
            if self.learns_alpha:
                self.minimize("alpha", self.alpha_loss(logprobs, batch["obs"]))
            value = self.actor_value(batch["obs"], actions)
            actor_loss = losses.soft_actor_loss(value, logprobs, self.alpha())
            self.minimize("actor", actor_loss)
            entropy_term = (self.alpha() * logprobs.detach()).mean(-1)
            metrics |= {"actor_loss": actor_loss.detach(), "entropy_term": entropy_term}
        critic_loss, critic_metrics = self.critic_loss(batch, noise)
        self.minimize("critic", critic_loss)
        self.update_target("critic", self.critic, self.config.tau)
        used_alpha = self.alpha().squeeze(-1).expand_as(critic_loss)
        return metrics | critic_metrics | {"critic_loss": critic_loss.detach(), "alpha": used_alpha}

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, MetricTensors]:
        """SAC's, and `eta` times how much the critics' slopes agree at the data's actions."""
        if not self.config.eta:
            return super().critic_loss(batch, noise)
        with torch.no_grad():
            target = self.value_target(batch, noise)
        q, slopes = self.values_and_slopes(batch["obs"], batch["actions"])
        similarity = slope_similarity(slopes)
        loss = losses.critic_mse(q, target) + self.config.eta * similarity
        return loss, {"target_q_mean": target.mean(-1), "diversity_loss": similarity.detach()}

    def values_and_slopes(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Every critic's value of an action `[*S, E, B]` and its gradient for it `[*S, E, B, A]`.

        The gradient can itself be differentiated.
        """
        members = actions.unsqueeze(-3).expand(*actions.shape[:-2], self.critic.num_critics, -1, -1)
        own = members.detach().clone().requires_grad_(True)
        q = self.critic.each(obs, own)
        (slopes,) = torch.autograd.grad(q.sum(), own, create_graph=True)
        return q, slopes


def slope_similarity(slopes: Tensor) -> Tensor:
    """1 / (N - 1) E[sum over i != j of cos(slope_i, slope_j)]: `[*S, N, B, A]` -> `[*S]`."""
    count = slopes.shape[-3]
    unit = slopes / (torch.linalg.vector_norm(slopes, dim=-1, keepdim=True) + SMALLEST_SLOPE)
    # |sum of all|^2 holds every pair, and each critic with itself, which is taken off again.
    pairs = unit.sum(-3).square().sum(-1) - unit.square().sum((-3, -1))
    similarity: Tensor = pairs.mean(-1) / (count - 1)
    return similarity


def edac_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `critic_q_values target_q_values sampled_q_values sampled_logprobs alpha action_gradients eta`.

    Values of all critics are `(B, N)`, `action_gradients` `(B, N, A)`. `eta` defaults to 1; with 0 no
    gradients are needed.
    """
    named, eta = losses.named_tensors(inputs), inputs.get("eta", 1.0)
    lowest = losses.reduce_critics(named["sampled_q_values"].mT, "min")
    critic_loss = losses.critic_mse(named["critic_q_values"].mT, named["target_q_values"])
    diversity = (
        slope_similarity(named["action_gradients"].movedim(-2, -3)) if eta else torch.zeros_like(critic_loss)
    )
    return losses.soft_policy_losses(named, lowest) | {
        "critic_loss": critic_loss + eta * diversity,
        "diversity_loss": diversity,
        "target_q_mean": named["target_q_values"].mean(-1),
    }


class EDACRunConfig(EDACConfig, EDACNetworkConfig, OfflineFields):
    """Every setting of an EDAC or SAC-N run."""


RECIPE = Recipe("edac", EDAC, MLPEDACModel, EDACRunConfig, title="SAC-N and EDAC", papers=("2110.01548",))
