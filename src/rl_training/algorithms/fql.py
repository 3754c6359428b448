"""FQL (Park et al. 2025, arXiv:2502.02538): a flow imitates the data, a one-step policy also climbs Q."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.bc import imitation_error
from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, MetricTensors, Noise, NoiseShapes
from rl_training.algorithms.recipe import Recipe
from rl_training.algorithms.td3 import value_loss
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.core.schema import MAX_SAMPLES
from rl_training.models.actors import OneStepActor, VelocityField
from rl_training.models.models import FQLNetworkConfig, MLPFQLModel


class FQLConfig(LearnerConfig):
    """Keywords of FQL."""

    tau: float = setting(0.005, "share of the critic that the target takes over per update", gt=0, le=1)
    alpha: float = setting(
        10.0, "weight of the distance between one-step policy and flow; tune this one first", ge=0
    )
    flow_steps: int = setting(
        10, "Euler steps that carry noise along the flow to an action", ge=1, most=MAX_SAMPLES
    )
    normalize_q_loss: bool = setting(
        False, "divide the values in the actor's loss by their mean absolute size"
    )
    q_agg: losses.Reduction = setting("mean", "the target takes the mean or minimum of the critics")


class FQL(Learner):
    """Flow matching for the data, distillation and values for the policy that acts."""

    config_class = FQLConfig
    config: FQLConfig

    def setup(self) -> None:
        self.actor = self.part("actor", OneStepActor)
        self.flow = self.part("flow", VelocityField)
        self.critic, self.target_critic = self.add_critic()
        self.add_optimizer("actor", [*self.actor.parameters(), *self.flow.parameters()], "actor")

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        shape = (batch_size, self.model.action_dim)
        return {
            "next": ("normal", shape),
            "start": ("normal", shape),
            "current": ("normal", shape),
            "time": ("uniform", (batch_size, 1)),
        }

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        """All gradients are taken before anything moves, the target's share too, as in the authors' code."""
        critic_loss, critic_metrics = self.critic_loss(batch, noise)
        actor_loss, actor_metrics = self.actor_loss(batch, noise)
        gradients = {
            "critic": self.gradients("critic", critic_loss),
            "actor": self.gradients("actor", actor_loss),
        }
        self.update_target("critic", self.critic, self.config.tau)
        for name, values in gradients.items():
            self.optimizers[name].apply(values)
        return critic_metrics | actor_metrics

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, MetricTensors]:
        with torch.no_grad():
            target = self.value_target(batch, noise)
        loss = mean_critic_mse(self.critic(batch["obs"], batch["actions"]), target)
        return loss, {"critic_loss": loss.detach(), "target_q_mean": target.mean(-1)}

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """r + gamma (1 - d) Q(s', a'), a' drawn from the one-step policy."""
        next_actions = self.actor.draw(batch["next_obs"], noise["next"])
        next_q = losses.reduce_critics(self.target_critic(batch["next_obs"], next_actions), self.config.q_agg)
        return losses.td_target(batch["rewards"], batch["dones"], next_q, self.discount(batch))

    def actor_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, MetricTensors]:
        obs, data, z = batch["obs"], batch["actions"], noise["current"]
        time = (noise["time"] + 1.0) / 2.0
        between = interpolated(noise["start"], data, time)
        flow_loss = imitation_error(self.flow(obs, between, time), data - noise["start"])
        with torch.no_grad():
            carried = self.flow_actions(obs, z)
        actions = self.actor.unclipped(obs, z)
        distill_loss = imitation_error(actions, carried)
        q = losses.reduce_critics(self.critic(obs, actions.clamp(-1.0, 1.0)), "mean")
        q_loss = policy_value_loss(q, self.config.normalize_q_loss)
        loss = flow_loss + self.config.alpha * distill_loss + q_loss
        parts = {"flow_loss": flow_loss, "distill_loss": distill_loss, "q_loss": q_loss, "actor_loss": loss}
        return loss, {name: part.detach() for name, part in parts.items()}

    def flow_actions(self, obs: Tensor, z: Tensor) -> Tensor:
        """Where the flow carries noise to, clipped to [-1, 1]: the imitation of the data."""
        steps = self.config.flow_steps
        return euler(lambda x, t: self.flow(obs, x, torch.full_like(x[..., :1], t)), z, steps).clamp(
            -1.0, 1.0
        )


def interpolated(start: Tensor, end: Tensor, time: Tensor) -> Tensor:
    """x_t = (1 - t) x_0 + t x_1: `[*S, B, A]` twice, `[*S, B, 1]` -> `[*S, B, A]`."""
    return (1.0 - time) * start + time * end


def euler(velocity: Callable[[Tensor, float], Tensor], start: Tensor, steps: int) -> Tensor:
    """x <- x + v(x, i / steps) / steps for i = 0 … steps - 1."""
    x = start
    for index in range(steps):
        x = x + velocity(x, index / steps) / steps
    return x


def mean_critic_mse(q: Tensor, target: Tensor) -> Tensor:
    """Mean over critics of the mean squared error: `[*S, E, B]`, `[*S, B]` -> `[*S]`."""
    return losses.critic_mse(q, target) / q.shape[-2]


def policy_value_loss(q: Tensor, normalize: bool) -> Tensor:
    """-E[Q(s, mu(s, z))], divided by E|Q| where asked for: `[*S, B]` -> `[*S]`."""
    loss = value_loss(q)
    return losses.value_weight(q, 1.0) * loss if normalize else loss


def fql_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `q1_values q2_values target_q_values`, the flow's `predicted_velocity start actions`, and the
    policy's `policy_actions flow_actions actor_q1_values actor_q2_values`.

    Optional: `alpha` (10) and `normalize_q_loss` (false).
    """
    named = losses.named_tensors(inputs)
    q = torch.stack([named["q1_values"], named["q2_values"]], dim=-2)
    actor_q = torch.stack([named["actor_q1_values"], named["actor_q2_values"]], dim=-2)
    flow_loss = imitation_error(named["predicted_velocity"], named["actions"] - named["start"])
    distill_loss = imitation_error(named["policy_actions"], named["flow_actions"])
    normalize = bool(inputs.get("normalize_q_loss", False))
    q_loss = policy_value_loss(losses.reduce_critics(actor_q, "mean"), normalize)
    return {
        "critic_loss": mean_critic_mse(q, named["target_q_values"]),
        "target_q_mean": named["target_q_values"].mean(-1),
        "flow_loss": flow_loss,
        "distill_loss": distill_loss,
        "q_loss": q_loss,
        "actor_loss": flow_loss + inputs.get("alpha", 10.0) * distill_loss + q_loss,
    }


class FQLRunConfig(FQLConfig, FQLNetworkConfig, OfflineFields):
    """Every setting of an FQL run."""


RECIPE = Recipe("fql", FQL, MLPFQLModel, FQLRunConfig, title="Flow Q-learning", papers=("2502.02538",))
