"""TD3+BC (Fujimoto and Gu 2021, arXiv:2106.06860): TD3 whose actor is also drawn to the data."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.bc import imitation_error
from rl_training.algorithms.ensembles import values_of
from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, Losses, Noise, NoiseShapes
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.config.data_fields import OfflineFields
from rl_training.models.actors import DeterministicTanh
from rl_training.models.critics import QEnsemble
from rl_training.models.models import MLPTD3Model
from rl_training.models.network_settings import NetworkConfig

SMALLEST_SCALE = 1e-7
"""Guards the division where every value is exactly zero; no trained critic comes near it."""


class TD3BCConfig(LearnerConfig):
    """Keywords of TD3+BC."""

    tau: float = setting(
        0.005, "share of critic and actor that their targets take over per actor update", gt=0, le=1
    )
    alpha: float = setting(2.5, "weight of the values against the pull towards the data's actions", gt=0)
    policy_noise: float = setting(0.2, "standard deviation of the noise on the target's next action", ge=0)
    noise_clip: float = setting(0.5, "largest size of that noise", ge=0)
    policy_delay: int = setting(2, "actor and targets: one update in this many critic updates", ge=1)


class TD3BC(Learner):
    """Twin critics, target actor with clipped noise, and an actor between its values and the data."""

    config_class = TD3BCConfig
    config: TD3BCConfig

    def setup(self) -> None:
        self.actor = self.part("actor", DeterministicTanh)
        self.critic = self.part("critic", QEnsemble)
        self.target_actor = self.add_target("actor", self.actor)
        self.target_critic = self.add_target("critic", self.critic)
        self.add_optimizer("critic", self.critic.parameters(), "critic")
        self.add_optimizer("actor", self.actor.parameters(), "actor")
        self.pull = torch.ones((), device=self.device)
        # Metrics of the delayed actor are zero until its first update.
        self.last_metrics = {
            name: torch.zeros((), device=self.device) for name in ("actor_loss", "bc_loss", "q_weight")
        }

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {"next": ("normal", (batch_size, self.model.action_dim))}

    def stage(self) -> str:
        return "full" if (self.updates + 1) % self.config.policy_delay == 0 else "critic"

    def go_online(self, progress: float) -> None:
        """The pull towards the logged actions fades in a line over the online phase."""
        super().go_online(progress)
        self.pull.fill_(1.0 - progress)

    def step(self, batch: Batch, noise: Noise, stage: str) -> Losses:
        with torch.no_grad():
            target = self.value_target(batch, noise)
        critic_loss = losses.critic_mse(self.critic(batch["obs"], batch["actions"]), target)
        self.minimize("critic", critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "target_q_mean": target.mean(-1)}
        if stage == "full":
            actor_loss, actor_metrics = self.actor_loss(batch)
            self.minimize("actor", actor_loss)
            self.update_target("critic", self.critic, self.config.tau)
            self.update_target("actor", self.actor, self.config.tau)
            metrics |= actor_metrics
        return metrics

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """r + gamma (1 - d) min Q(s', a'), a' the target actor's action with clipped noise."""
        next_actions = smoothed_actions(
            self.target_actor.mode(batch["next_obs"]),
            noise["next"],
            self.config.policy_noise,
            self.config.noise_clip,
        )
        next_q = losses.reduce_critics(self.target_critic(batch["next_obs"], next_actions), "min")
        return losses.td_target(batch["rewards"], batch["dones"], next_q, self.discount(batch))

    def actor_loss(self, batch: Batch) -> tuple[Tensor, Losses]:
        actions = self.actor.mode(batch["obs"])
        q = values_of(self.critic, first_member, batch["obs"], actions).squeeze(-2)
        imitation = imitation_error(actions, batch["actions"])
        weight = value_weight(q, self.config.alpha)
        loss = weighted_actor_loss(q, self.pull * imitation, weight)
        return loss, {"actor_loss": loss.detach(), "bc_loss": imitation.detach(), "q_weight": weight}


def first_member(parameter: Tensor) -> Tensor:
    """The actor climbs the first critic alone."""
    return parameter.narrow(-3, 0, 1)


def smoothed_actions(actions: Tensor, noise: Tensor, policy_noise: float, noise_clip: float) -> Tensor:
    """clip(a + clip(sigma * noise, -c, c), -1, 1): similar actions should have similar values (TD3)."""
    return (actions + (policy_noise * noise).clamp(-noise_clip, noise_clip)).clamp(-1.0, 1.0)


def value_weight(q: Tensor, alpha: float | Tensor) -> Tensor:
    """lambda = alpha / mean |Q(s, pi(s))|, a constant for the gradient: `[*S, B]` -> `[*S]`."""
    return alpha / q.detach().abs().mean(-1).clamp_min(SMALLEST_SCALE)


def weighted_actor_loss(q: Tensor, imitation: Tensor, weight: Tensor) -> Tensor:
    """-lambda E[Q(s, pi(s))] + E[(pi(s) - a)^2]: `[*S, B]`, `[*S]`, `[*S]` -> `[*S]`."""
    return imitation - weight * q.mean(-1)


def td3_bc_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `q1_values q2_values target_q_values actor_q_values policy_actions actions alpha`.

    `actor_q_values` are the first critic's at the policy's actions; `alpha` defaults to 2.5.
    """
    named = {name: torch.as_tensor(value) for name, value in inputs.items()}
    q = torch.stack([named["q1_values"], named["q2_values"]], dim=-2)
    imitation = imitation_error(named["policy_actions"], named["actions"])
    weight = value_weight(named["actor_q_values"], inputs.get("alpha", 2.5))
    return {
        "critic_loss": losses.critic_mse(q, named["target_q_values"]),
        "actor_loss": weighted_actor_loss(named["actor_q_values"], imitation, weight),
        "bc_loss": imitation,
        "target_q_mean": named["target_q_values"].mean(-1),
        "q_weight": weight,
    }


class TD3BCRunConfig(TD3BCConfig, NetworkConfig, OfflineFields):
    """Every setting of a TD3+BC run."""

    normalize_observations: bool = setting(
        True, "(obs - mean) / (std + 1e-3) over the data, saved with the policy"
    )


RECIPE = Recipe(
    name="td3_bc",
    learner=TD3BC,
    model=MLPTD3Model,
    settings=TD3BCRunConfig,
    title="TD3+BC",
    papers=("2106.06860",),
)
