"""TD3 pulled towards the data in actor and critic, after ReBRAC (Tarasov et al. 2023, arXiv:2305.09836).

One file: settings, learner, loss and recipe. The entry point in `pyproject.toml` names the recipe; from then
on the algorithm has its class (`rl_training.PulledTD3`), the command line, sweeps, resuming and export.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rl_training.algorithms import Recipe, losses
from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, MetricTensors, Noise, NoiseShapes
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.models import MLPTD3Model
from rl_training.models.actors import DeterministicTanh
from rl_training.models.networks import NetworkConfig


class PulledTD3Config(LearnerConfig):
    """Keywords of the learner."""

    tau: float = setting(0.005, "share of the networks that their targets take over per update", gt=0, le=1)
    actor_pull: float = setting(0.1, "weight of the distance to the logged action in the actor's loss", ge=0)
    critic_pull: float = setting(0.01, "weight of the distance to the next logged action in the target", ge=0)
    target_noise: float = setting(0.2, "standard deviation of the noise on the target's next action", ge=0)
    target_noise_clip: float = setting(0.5, "largest size of that noise", ge=0)
    policy_delay: int = setting(2, "actor and targets: one update in this many critic updates", ge=1)


class PulledTD3(Learner):
    """Knows no environment, file or logger: it sees batches and returns metrics."""

    config_class = PulledTD3Config
    config: PulledTD3Config
    needs = frozenset({"next_actions"})
    delayed_metrics = ("actor_loss",)

    def setup(self) -> None:
        self.actor = self.part("actor", DeterministicTanh)
        self.target_actor = self.add_target("actor", self.actor)
        self.critic, self.target_critic = self.add_critic()
        self.add_optimizer("actor", self.actor.parameters(), "actor")

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {"next": ("normal", (batch_size, self.model.action_dim))}

    def stage(self) -> str:
        return "full" if (self.updates + 1) % self.config.policy_delay == 0 else "critic"

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        with torch.no_grad():
            target = self.value_target(batch, noise)
        critic_loss = losses.critic_mse(self.critic(batch["obs"], batch["actions"]), target)
        self.minimize("critic", critic_loss)
        metrics = {"critic_loss": critic_loss.detach(), "target_q_mean": target.mean(-1)}
        if stage == "full":
            actions = self.actor.mode(batch["obs"])
            q = losses.reduce_critics(self.critic(batch["obs"], actions), "min")
            loss = pulled_actor_loss(q, squared_distance(actions, batch["actions"]), self.config.actor_pull)
            self.minimize("actor", loss)
            self.update_target("critic", self.critic, self.config.tau)
            self.update_target("actor", self.actor, self.config.tau)
            metrics["actor_loss"] = loss.detach()
        return metrics

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """r + gamma (1 - d) (min Q(s', a') - pull |a' - logged a'|^2), a' the target's with noise."""
        limit = self.config.target_noise_clip
        jitter = (self.config.target_noise * noise["next"]).clamp(-limit, limit)
        actions = (self.target_actor.mode(batch["next_obs"]) + jitter).clamp(-1.0, 1.0)
        q = losses.reduce_critics(self.target_critic(batch["next_obs"], actions), "min")
        penalty = self.config.critic_pull * squared_distance(actions, batch["next_actions"])
        return losses.td_target(batch["rewards"], batch["dones"], q - penalty, self.discount(batch))


def squared_distance(first: Tensor, second: Tensor) -> Tensor:
    """Summed over the action: `[*S, B, A]` twice -> `[*S, B]`."""
    return (first - second).square().sum(-1)


def pulled_actor_loss(q: Tensor, distance: Tensor, pull: float) -> Tensor:
    """mean(pull |pi(s) - a|^2 - Q / mean|Q|), the scale a constant: `[*S, B]` twice -> `[*S]`."""
    scale = q.detach().abs().mean(-1, keepdim=True).clamp_min(1e-7)
    return (pull * distance - q / scale).mean(-1)


def pulled_td3_loss(inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The actor's loss on named tensors: `q_values policy_actions actions actor_pull`."""
    distance = squared_distance(inputs["policy_actions"], inputs["actions"])
    return {"actor_loss": pulled_actor_loss(inputs["q_values"], distance, float(inputs["actor_pull"]))}


class PulledTD3RunConfig(PulledTD3Config, NetworkConfig, OfflineFields):
    """Every setting of a run."""


RECIPE = Recipe(
    name="pulled_td3",
    learner=PulledTD3,
    model=MLPTD3Model,
    settings=PulledTD3RunConfig,
    title="TD3 with a pull towards the data",
    papers=("2305.09836",),
)
