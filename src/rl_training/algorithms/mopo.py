"""MOPO (Yu et al. 2020, arXiv:2005.13239): SAC on logged rows and on short trajectories inside a model.

The same learner is MOBILE (Sun et al. 2023, ICML) with its other penalty: what the model is unsure of costs
reward, by the spread that it predicts or by how far its members' Bellman targets lie apart.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms import losses
from rl_training.algorithms.dynamics import ModelBasedFields, ModelLearner
from rl_training.algorithms.learner import Batch, MetricTensors, Noise, NoiseShapes
from rl_training.algorithms.recipe import Recipe
from rl_training.algorithms.sac import SAC, SACConfig, sac_loss
from rl_training.config import setting
from rl_training.core.errors import ConfigError
from rl_training.core.schema import MAX_SAMPLES
from rl_training.models.dynamics import MLPModelBasedSACModel, ModelBasedSACNetworkConfig

RANGE_MARGIN = 0.1
"""How far beyond the log's range imagined states may go, as a share of it."""

ROLLOUT_NOISE = ("member", "action", "change")

ENDED = 0.5
"""An imagined trajectory whose end is likelier than this begins again."""


class MOPOConfig(SACConfig):
    """Keywords of MOPO and MOBILE beside SAC's."""

    model_updates: int = setting(5000, "first updates, which fit the model; then it stays as it is", ge=1)
    model_learning_rate: float = setting(1e-3, "Adam step size of the model", gt=0)
    horizon: int = setting(
        5, "steps that are imagined from a logged state; 0: none, and SAC on the log", ge=0, most=MAX_SAMPLES
    )
    imagined_share: float = setting(0.95, "share of each batch that is imagined", ge=0, le=1)
    uncertainty: Literal["aleatoric", "bellman"] = setting(
        "aleatoric",
        "what an imagined reward is lowered by: the largest spread that a member predicts, or the members' "
        "disagreement on the Bellman target",
    )
    penalty_coef: float = setting(1.0, "weight of the penalty; 0: the model is trusted", ge=0)
    penalty_samples: int = setting(
        10, "successors drawn from each member where uncertainty is bellman", ge=1, most=MAX_SAMPLES
    )
    backup_entropy: bool = setting(True, "put SAC's entropy bonus into the Bellman target")


class MOPO(ModelLearner, SAC):
    """Two stages, counted by its own updates: fit the model, then SAC on batches that are mostly imagined."""

    config_class = MOPOConfig
    config: MOPOConfig
    model: MLPModelBasedSACModel
    takes_actions = ("numbers",)
    follows_signals = True
    delayed_metrics: ClassVar[tuple[str, ...]] = (
        *("model_loss", "model_unseen_loss", "critic_loss", "target_q_mean", "actor_loss", "entropy_term"),
        *("alpha", "imagined_reward", "penalty_mean"),
    )

    def setup(self) -> None:
        SAC.setup(self)
        self.add_dynamics(self.config.model_learning_rate)
        if self.config.uncertainty == "bellman" and self.dynamics.members < 2:
            raise ConfigError("members must be >= 2 with uncertainty bellman (members are compared), got 1")

    def look_at_data(
        self, rows: Mapping[str, Tensor], *, margin: float = RANGE_MARGIN, scaled: bool = False
    ) -> None:
        super().look_at_data(rows, margin=margin, scaled=scaled)

    def online_needs(self) -> frozenset[str]:
        """The environment answers then: nothing is imagined any more."""
        return frozenset()

    # ---- stages

    def stage(self) -> str:
        if not self.fits_model:
            return super().stage()
        return "model check" if self.checks_now or self.updates + 1 == self.config.model_updates else "model"

    @property
    def fits_model(self) -> bool:
        return self.updates < self.config.model_updates and not self.online

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        if self.fits_model and not self.resting:
            return {}
        shapes = dict(super().noise_shapes(batch_size))
        if count := self.imagined_rows(batch_size):
            steps, starts = self.config.horizon, self.starts(count)
            state, action = self.model.obs_dim, self.model.action_dim
            shapes["rollout_member"] = ("uniform", (steps, starts))
            shapes["rollout_action"] = ("normal", (steps, starts, action))
            shapes["rollout_change"] = ("normal", (steps, starts, state + 1))
            if self.config.uncertainty == "bellman" and self.config.penalty_coef:
                drawn = self.config.penalty_samples * count
                shapes["penalty_state"] = ("normal", (self.dynamics.members, drawn, state))
                shapes["penalty_action"] = ("normal", (self.dynamics.members, drawn, action))
        return shapes

    def imagined_rows(self, batch_size: int) -> int:
        """How many rows of a batch are imagined."""
        none = self.online or not self.config.horizon
        return 0 if none else round(self.config.imagined_share * batch_size)

    def starts(self, count: int) -> int:
        """From how many logged states so many rows are imagined."""
        return math.ceil(count / self.config.horizon)

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        if stage.startswith("model"):
            return self.model_step(batch, check=stage == "model check")
        count = self.imagined_rows(batch["obs"].shape[-2])
        mixed, metrics = self.mixed(batch, noise, count) if count else (batch, {})
        metrics |= super().step(mixed, noise, stage)
        return metrics | self.model_step(batch, check=False) if self.resting else metrics  # `losses_on`

    # ---- imagined rows

    @torch.no_grad()
    def mixed(self, batch: Batch, noise: Noise, count: int) -> tuple[dict[str, Tensor], MetricTensors]:
        """The batch with its last `count` rows replaced by imagined ones, whose rewards are penalised."""
        rows, mean, log_std = self.imagine(batch, noise, count)
        reward, coefficient = rows["rewards"], self.config.penalty_coef
        penalty = self.penalty(rows, mean, log_std, noise) if coefficient else torch.zeros_like(reward)
        rows["rewards"] = reward - coefficient * penalty
        if "discounts" in batch:
            rows["discounts"] = torch.full_like(reward, self.config.gamma)
        axis, kept = reward.dim() - 1, batch["obs"].shape[-2] - count
        mixed = {
            name: torch.cat([batch[name].narrow(axis, 0, kept), values], axis)
            for name, values in rows.items()
            if name in batch
        }
        return mixed, {"imagined_reward": reward.mean(-1), "penalty_mean": penalty.mean(-1)}

    def imagine(self, batch: Batch, noise: Noise, count: int) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """`count` rows of trajectories of the policy inside the model, from the last states of the batch.

        Beside them the members' means and log stds there, `[*S, members, count, O + 1]`. A trajectory
        follows another member in each step, drawn by lot; where it ends it begins again at its logged state.
        """
        obs, memory = batch["obs"], self.memory_of(batch)
        start = obs.shape[-2] - self.starts(count)
        first = state = obs[..., start:, :]
        remembered = memory = memory[..., start:, :]
        steps, seeds = [], obs.dim() - 2
        for index in range(self.config.horizon):
            drawn = {name: noise[f"rollout_{name}"].select(seeds, index) for name in ROLLOUT_NOISE}
            step, after = self.imagined_step(state, memory, **drawn)
            steps.append(step | {"signal_states": memory})
            again = (step["dones"] > ENDED).unsqueeze(-1)
            state = torch.where(again, first, step["next_obs"])
            memory = torch.where(again, remembered, after)
        axes = {name: -1 if name in ("rewards", "dones") else -2 for name in steps[0]}
        rows = {
            name: torch.cat([step[name] for step in steps], axis).narrow(axis, 0, count)
            for name, axis in axes.items()
        }
        return rows, rows.pop("mean"), rows.pop("log_std")

    def imagined_step(
        self, state: Tensor, memory: Tensor, member: Tensor, action: Tensor, change: Tensor
    ) -> tuple[dict[str, Tensor], Tensor]:
        """One step from states `[*S, B, O]`, with its random numbers; an end is told by its probability.

        Beside it what signals of time remember afterwards.
        """
        dynamics = self.kept_dynamics
        actions, _ = self.actor(state, action)
        actions = self.as_run(actions, state)
        before, played = state.unsqueeze(-3), actions.unsqueeze(-3)
        mean, log_std = dynamics(before, played)
        chosen = chosen_members(member, dynamics.members)
        each = (mean + log_std.exp() * change.unsqueeze(-3)) * chosen.unsqueeze(-1)
        following, reward = dynamics.following(before, each.sum(-3, keepdim=True))
        following, after = self.followed(dynamics.within_range(following), played, memory.unsqueeze(-3))
        ended = torch.zeros_like(reward)
        if self.has_ends:
            each_ended, each_reward = dynamics.ended(before, played, following, reward)
            ended, reward = ((chosen * told).sum(-2, keepdim=True) for told in (each_ended, each_reward))
        return {
            "obs": state,
            "actions": actions,
            "rewards": reward.squeeze(-2),
            "next_obs": following.squeeze(-3),
            "dones": ended.squeeze(-2),
            "mean": mean,
            "log_std": log_std,
        }, after.squeeze(-3)

    # ---- penalties

    def penalty(self, rows: Batch, mean: Tensor, log_std: Tensor, noise: Noise) -> Tensor:
        """How little the model is to be trusted in each row, in units of the rewards: `[*S, B]`."""
        if self.config.uncertainty == "bellman":
            return bellman_penalty(self.member_targets(rows, mean, log_std, noise))
        spread = self.kept_dynamics.change_spread[..., 0, -1]
        return spread * aleatoric_penalty(log_std + self.kept_dynamics.predicted.log())

    def member_targets(self, rows: Batch, mean: Tensor, log_std: Tensor, noise: Noise) -> Tensor:
        """Bellman targets as each member sees them, `[*S, members, B]`: means over successors of its own."""
        dynamics, samples = self.kept_dynamics, self.config.penalty_samples
        count = mean.shape[-2]

        def repeated(values: Tensor) -> Tensor:
            return torch.cat([values] * samples, -2)

        before, played = repeated(rows["obs"].unsqueeze(-3)), repeated(rows["actions"].unsqueeze(-3))
        change = repeated(mean)
        scatter = repeated(log_std[..., :-1]).exp() * noise["penalty_state"]
        change = torch.cat([change[..., :-1] + scatter, change[..., -1:]], -1)
        following, reward = dynamics.following(before, change)
        memory = repeated(self.memory_of(rows).unsqueeze(-3))
        following, _ = self.followed(dynamics.within_range(following), played, memory)
        flat = following.flatten(-3, -2)
        actions, _ = self.actor(flat, noise["penalty_action"].flatten(-3, -2))
        value = losses.reduce_critics(self.target_critic(flat, actions), "min").reshape(reward.shape)
        if self.has_ends:
            each = (*following.shape[:-1], -1)
            ended, reward = dynamics.ended(before.expand(each), played.expand(each), following, reward)
            value = value * (1.0 - ended)
        targets = reward + self.config.gamma * value
        return targets.reshape(*targets.shape[:-1], samples, count).mean(-2)

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """SAC's, with or without the entropy of the next action."""
        if self.config.backup_entropy:
            return super().value_target(batch, noise)
        next_actions, _ = self.actor(batch["next_obs"], noise["next"])
        next_q = losses.reduce_critics(self.target_critic(batch["next_obs"], next_actions), "min")
        return losses.td_target(batch["rewards"], batch["dones"], next_q, self.discount(batch))


def chosen_members(uniform: Tensor, members: int) -> Tensor:
    """A member for every row, from U[-1, 1): `[*S, B]` -> 1 for that member, `[*S, members, B]`."""
    index = ((uniform + 1.0) / 2.0 * members).long().clamp(0, members - 1).unsqueeze(-2)
    each = torch.arange(members, device=uniform.device).unsqueeze(-1)
    return (index == each).to(uniform.dtype)


def aleatoric_penalty(log_std: Tensor) -> Tensor:
    """max over members of |sigma(s, a)| (Yu et al. 2020, section 4.3): `[*S, members, B, K]` -> `[*S, B]`."""
    longest: Tensor = torch.linalg.vector_norm(log_std.exp(), dim=-1).amax(-2)
    return longest


def bellman_penalty(targets: Tensor) -> Tensor:
    """Std over members of their Bellman targets (Sun et al. 2023): `[*S, members, B]` -> `[*S, B]`."""
    return targets.std(-2)


def mopo_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `predicted_stds` `(members, B, K)` and what `penalised_loss` takes."""
    return penalised_loss(inputs, aleatoric_penalty(losses.named_tensors(inputs)["predicted_stds"].log()))


def penalised_loss(inputs: Mapping[str, Tensor | float], penalty: Tensor) -> dict[str, Tensor]:
    """SAC's losses of imagined rows, from what `sac_loss` takes, with the target worked out.

    In place of `target_q_values` stand `rewards dones next_values`; optional: `gamma` (0.99) and
    `penalty_coef` (1).
    """
    named = losses.named_tensors(inputs)
    rewards = named["rewards"] - inputs.get("penalty_coef", 1.0) * penalty
    target = losses.td_target(rewards, named["dones"], named["next_values"], inputs.get("gamma", 0.99))
    return sac_loss({**inputs, "target_q_values": target}) | {"penalty_mean": penalty.mean(-1)}


class MOPORunConfig(MOPOConfig, ModelBasedSACNetworkConfig, ModelBasedFields):
    """Every setting of a MOPO run."""

    @model_validator(mode="after")
    def _the_model_learns_single_steps(self) -> Self:
        if self.n_step > 1:
            raise ValueError(f"n_step must be 1: the model learns single steps, got {self.n_step}")
        return self

    def mistaken_lengths(self, total: int | None, online: int | None) -> list[str]:
        """The second stage must be reached."""
        if total is None or total > self.model_updates:
            return []
        return [
            f"total_timesteps must be > {self.model_updates}, the updates of the model before the policy "
            f"learns, got {total}; lower algo_kwargs.model_updates for less"
        ]


RECIPE = Recipe("mopo", MOPO, MLPModelBasedSACModel, MOPORunConfig, title="MOPO", papers=("2005.13239",))
