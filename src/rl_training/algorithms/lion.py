"""LION (Swazinna et al. 2023, arXiv:2205.10629): a policy with a dial, found inside a model of the plant.

The policy takes a dial λ beside the observation. On imagined trajectories it earns the rewards times λ
and pays for its distance to the imitated behaviour times 1 - λ; gradients go through all steps. One policy
holds everything from "as logged" (0) to "as good as the model believes" (1).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple, Self

import torch
from pydantic import model_validator
from scipy import stats
from torch import Tensor

from rl_training.algorithms.bc import imitation_error
from rl_training.algorithms.dynamics import ModelBasedFields, ModelLearner
from rl_training.algorithms.graphs import Step
from rl_training.algorithms.learner import (
    Batch,
    LearnerConfig,
    MetricTensors,
    Noise,
    NoiseShapes,
    UpdateResult,
)
from rl_training.algorithms.losses import named_tensors
from rl_training.algorithms.recipe import Recipe
from rl_training.config import setting
from rl_training.core.schema import MAX_BATCH, MAX_SAMPLES
from rl_training.models.actors import DialledTanh
from rl_training.models.dynamics import LIONNetworkConfig, MLPLIONModel
from rl_training.policies.inputs import Inputs, RuntimeInput

LAST_RATE = 0.05
"""Share of a learning rate that is left at the end of a stage."""

DIAL_POINTS = 4097
"""Quantiles of the dial's distribution, between which it is interpolated."""

LARGEST_GRADIENT = 1.0
FORGETTING = 0.01
"""Share of a running mean that the newest update replaces."""

RANGE_MARGIN = 0.1
"""How far beyond the log's range imagined states may go, as a share of it."""

SMALLEST_SPREAD = 0.05
"""Of logged actions around the imitated ones, in [-1, 1] units: an operator who never varies is no wall."""


class LIONConfig(LearnerConfig):
    """Keywords of LION."""

    learning_rate: float = setting(2e-3, "Adam step size of every network", gt=0)
    model_updates: int = setting(2000, "updates of the first stage, which fits the model", ge=1)
    behavior_updates: int = setting(2000, "updates of the second stage, which imitates the log", ge=1)
    policy_updates: int = setting(
        300, "updates of the third stage over which its learning rate falls to a twentieth", ge=1
    )
    horizon: int = setting(60, "steps that are imagined", ge=1, most=MAX_SAMPLES)
    rollouts: int = setting(
        100,
        "imagined trajectories per update, spread over the members",
        ge=1,
        most=MAX_BATCH,
    )
    dial: float = setting(0.5, "where the dial stands if nobody turns it", ge=0, le=1)
    dial_shape: float = setting(0.3, "dials are drawn from Beta(a, a); a small a favours the ends", gt=0)
    pull: float = setting(1.0, "weight, at dial 0, of the distance to the imitated behaviour", ge=0)
    pessimism: float = setting(
        0.4,
        "what a step loses, in spreads of the reward, per unit of disagreement beyond what is free",
        ge=0,
    )
    free_disagreement: float = setting(
        1.5, "disagreement that costs nothing, as a multiple of what is typical on the log", ge=0
    )
    reduction: Literal["mean", "minimum"] = setting(
        "mean", "a trajectory follows a member of its own, or in every step the one with the least reward"
    )
    model_noise: bool = setting(True, "imagined steps scatter as far as the model says, or errs on the log")
    action_noise: float = setting(
        0.0, "std of noise on imagined actions, in [-1, 1] units, for rewards with kinks", ge=0
    )


class Imagined(NamedTuple):
    """A step of imagined trajectories: where they get to, and what counts."""

    state: Tensor
    reward: Tensor
    """`[*S, B]`, in units of the reward's spread"""
    distance: Tensor
    """`[*S, B]`: mean square of (policy - behaviour) / spread of logged actions"""
    disagreement: Tensor
    """`[*S, B]`, as a multiple of what is typical on the log"""
    survival: Tensor
    """`[*S, B]`: probability that it goes on"""
    memory: Tensor
    """`[*S, 1, B, state_size]`: of signals of time, what they remember after the state"""
    penalty: tuple[Tensor, ...]
    """`[*S, B]`: what costs take off the reward, in units of its spread; empty where none does"""


class LION(ModelLearner):
    """Three stages, counted by its own updates: fit the model, imitate the log, search for the policy."""

    config_class = LIONConfig
    config: LIONConfig
    model: MLPLIONModel
    pays_penalties = True
    follows_signals = True
    delayed_metrics = (
        *("model_loss", "model_unseen_loss", "behavior_loss", "actor_loss"),
        *("imagined_reward", "pull_mean", "disagreement_mean"),
    )

    def setup(self) -> None:
        self.actor = self.part("actor", DialledTanh)
        self.add_dynamics()
        self.add_optimizer("behavior", self.actor.usual.parameters(), "actor")
        self.add_optimizer("actor", self.actor.net.parameters(), "actor")
        sizes = {"remembered": 1, "typical_disagreement": 1, "behavior_variance": self.model.action_dim}
        self.scalars |= {name: torch.zeros(size, device=self.device) for name, size in sizes.items()}
        shape = self.config.dial_shape
        quantiles = stats.beta.ppf(torch.linspace(0.0, 1.0, DIAL_POINTS).double().numpy(), shape, shape)
        self.dial_quantiles = torch.from_numpy(quantiles).float().to(self.device)

    def inputs(self) -> Inputs:
        return (RuntimeInput("dial", 0.0, 1.0, self.config.dial),)

    def look_at_data(
        self, rows: Mapping[str, Tensor], *, margin: float = RANGE_MARGIN, scaled: bool = False
    ) -> None:
        super().look_at_data(rows, margin=margin, scaled=scaled)

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        rows, steps = self.config.rollouts, self.config.horizon
        shapes: NoiseShapes = {
            "dial": ("uniform", (max(rows, batch_size), 1)),
            "model": ("normal", (steps, rows, self.model.obs_dim + 1)),
            "action": ("normal", (steps, rows, self.model.action_dim)),
        }
        used = {"model": self.config.model_noise, "action": self.config.action_noise > 0}
        policy = self.stage() == "policy"
        return {name: each for name, each in shapes.items() if name == "dial" or (policy and used[name])}

    def build_step(self, stage: str, shapes: NoiseShapes) -> Step:
        """A trajectory as one graph would take minutes to compile, and gain a quarter."""
        return self.plain_step(stage, shapes) if stage == "policy" else super().build_step(stage, shapes)

    # ---- stages

    def stage(self) -> str:
        done, config = self.updates, self.config
        if done < config.model_updates:
            return "model check" if self.checks_now or done + 1 == config.model_updates else "model"
        return "behavior" if done < config.model_updates + config.behavior_updates else "policy"

    def update(self, batch: Batch, *, global_step: int) -> UpdateResult:
        """One update of the stage that is due, at the rate that its progress leaves."""
        config, done = self.config, self.updates
        for length in (config.model_updates, config.behavior_updates):
            if done < length:
                break
            done -= length
        else:
            length = config.policy_updates
        self.set_learning_rate_scale(1.0 - (1.0 - LAST_RATE) * min(1.0, done / length))
        return super().update(batch, global_step=global_step)

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        if stage == "policy":
            return self.policy_step(batch, noise)
        if stage == "behavior":
            return self.behavior_step(batch, noise)
        metrics = self.model_step(batch, check=stage == "model check")
        return metrics | self.behavior_step(batch, noise) if stage == "full" else metrics  # `losses_on`

    def behavior_step(self, batch: Batch, noise: Noise) -> MetricTensors:
        """Imitation, from which the policy starts at every dial; and what is usual on the log."""
        obs, logged = batch["obs"], batch["actions"]
        dial = (noise["dial"][..., : obs.shape[-2], :] + 1.0) / 2.0
        own = self.actor.usual(obs).tanh()
        loss = imitation_error(own, logged)
        self.minimize("behavior", loss)
        self.minimize("actor", imitation_error(self.actor.mode(torch.cat([obs, dial], dim=-1)), logged))
        if not self.resting:
            with torch.no_grad():
                mean, _ = self.kept_dynamics(obs.unsqueeze(-3), logged.unsqueeze(-3))
                usual = disagreement(mean).mean(-1, keepdim=True)
                self._remember(typical_disagreement=usual, behavior_variance=(own - logged).square().mean(-2))
        return {"behavior_loss": loss.detach()}

    def _remember(self, **values: Tensor) -> None:
        """Running means, plain ones over the first updates."""
        count = self.scalars["remembered"].add_(1.0)
        for name, value in values.items():
            kept = self.scalars[name]
            kept.add_((value - kept) * (1.0 / count).clamp_min(FORGETTING))

    def policy_step(self, batch: Batch, noise: Noise) -> MetricTensors:
        """Gradients of imagined trajectories, clipped to norm 1."""
        config, obs, rows = self.config, batch["obs"], self.config.rollouts
        starts = torch.arange(rows, device=self.device) % obs.shape[-2]
        state, memory = (each[..., starts, :].unsqueeze(-3) for each in (obs, self.memory_of(batch)))
        dial = self.dials(noise["dial"][..., :rows, :])
        alive, gamma = torch.ones_like(dial.squeeze(-1)), 1.0
        names = ["imagined_reward", "pull_mean", "disagreement_mean"]
        names += ["imagined_penalty"] if self.dynamics.penalised else []
        total, sums = torch.zeros_like(alive), torch.zeros(len(names), *alive.shape, device=self.device)
        for index in range(config.horizon):
            drawn = [noise[name][..., index, :, :] if name in noise else None for name in ("model", "action")]
            step = self.imagine(state, memory, dial, *drawn)
            gain = dialled_gain(
                step.reward - sum(step.penalty),
                step.distance,
                step.disagreement,
                dial.squeeze(-1),
                **self.weights,
            )
            total = total + gamma * alive * gain
            kept = [step.reward, step.distance, step.disagreement, *step.penalty]
            sums = sums + gamma * torch.stack(kept).detach()
            state, memory = step.state, step.memory
            alive, gamma = alive * step.survival, gamma * config.gamma
        weight = (1.0 - config.gamma) / (1.0 - gamma) if config.gamma < 1.0 else 1.0 / config.horizon
        loss = -weight * total.mean(-1)
        gradients = clipped(self.gradients("actor", loss), LARGEST_GRADIENT, loss.dim())
        self.optimizers["actor"].apply(gradients)
        return {
            "actor_loss": loss.detach(),
            **{name: weight * values.mean(-1) for name, values in zip(names, sums, strict=True)},
        }

    @property
    def weights(self) -> dict[str, float]:
        config = self.config
        return {
            "pull": config.pull,
            "pessimism": config.pessimism,
            "free_disagreement": config.free_disagreement,
        }

    def dials(self, uniform: Tensor) -> Tensor:
        """Beta(a, a) by its quantiles, from U[-1, 1): `[*S, B, 1]`."""
        place = (uniform + 1.0) / 2.0 * (DIAL_POINTS - 1)
        left = place.floor().clamp(0, DIAL_POINTS - 2).long()
        low, high = self.dial_quantiles[left], self.dial_quantiles[left + 1]
        return low + (high - low) * (place - left)

    # ---- one imagined step

    def imagine(
        self,
        state: Tensor,
        memory: Tensor,
        dial: Tensor,
        model_noise: Tensor | None,
        action_noise: Tensor | None,
    ) -> Imagined:
        """From states `[*S, 1, B, O]`; the axis of one is the members', who share them."""
        seen, dynamics = state.squeeze(-3), self.kept_dynamics
        usual, actions = self.actor.both(torch.cat([seen, dial], dim=-1))
        spread = self.scalars["behavior_variance"].sqrt().clamp_min(SMALLEST_SPREAD).unsqueeze(-2)
        distance = ((actions - usual.detach()) / spread).square().mean(-1)
        if action_noise is not None:
            actions = (actions + self.config.action_noise * action_noise).clamp(-1.0, 1.0)
        actions = self.as_run(actions, seen).unsqueeze(-3)
        mean, log_std = dynamics(state, actions)
        apart = disagreement(mean) / self.scalars["typical_disagreement"].clamp_min(1e-8)
        chosen = self.chosen(mean)
        change = (chosen * mean).sum(-3, keepdim=True)
        if model_noise is not None:
            change = change + (chosen * log_std.exp()).sum(-3, keepdim=True) * model_noise.unsqueeze(-3)
        following, _ = dynamics.following(state, change)
        following, memory = self.followed(dynamics.within_range(following), actions, memory)
        reward = change[..., -1].squeeze(-2)
        penalty: tuple[Tensor, ...] = ()
        if dynamics.penalised:
            taken = dynamics.possible_penalty(dynamics.penalty(state, actions, following))
            unit = dynamics.change_spread[..., -1].squeeze(-2)
            penalty = ((chosen.squeeze(-1) * taken).sum(-2) / unit,)
        if not self.has_ends:  # a level of rewards that are earned for ever changes nothing
            return Imagined(following, reward, distance, apart, torch.ones_like(reward), memory, penalty)
        level = (dynamics.change_center / dynamics.change_spread)[..., -1].squeeze(-2)
        unit = dynamics.change_spread[..., -1].squeeze(-2)
        each, earned = dynamics.ended(state, actions, following, ((reward + level) * unit).unsqueeze(-2))
        ended, earned = ((chosen.squeeze(-1) * values).sum(-2) for values in (each, earned))
        return Imagined(following, earned / unit, distance, apart, 1.0 - ended, memory, penalty)

    def chosen(self, mean: Tensor) -> Tensor:
        """Whose prediction each trajectory follows, 1 for that member: `[*S, members, B, 1]`."""
        members, rows = mean.shape[-3:-1]
        if self.config.reduction == "minimum":
            least = mean[..., -1].argmin(-2, keepdim=True).unsqueeze(-1)
        else:
            least = (torch.arange(rows, device=mean.device) % members).reshape(1, rows, 1)
        each = torch.arange(members, device=mean.device).reshape(members, 1, 1)
        return (least == each).to(mean.dtype)


def disagreement(mean: Tensor) -> Tensor:
    """Std over members of what they predict, mean over columns: `[*S, members, B, K]` -> `[*S, B]`."""
    return mean.std(-3, correction=0).mean(-1)


def dialled_gain(
    reward: Tensor,
    distance: Tensor,
    disagreement: Tensor,
    dial: Tensor,
    *,
    pull: float,
    pessimism: float,
    free_disagreement: float,
) -> Tensor:
    """λ (r - κ relu(u - u_0)) - (1 - λ) c p, each `[*S, B]`."""
    cautious = reward - pessimism * (disagreement - free_disagreement).relu()
    return dial * cautious - (1.0 - dial) * pull * distance


def clipped(gradients: Sequence[Tensor], largest: float, seed_axes: int) -> list[Tensor]:
    """Scaled down together to a norm of at most `largest`, for each seed by itself."""
    squares = [each.square().flatten(seed_axes).sum(-1) for each in gradients]
    scale = (largest / torch.stack(squares).sum(0).sqrt().clamp_min(1e-12)).clamp(max=1.0)
    return [each * scale.reshape(*scale.shape, *(1,) * (each.dim() - seed_axes)) for each in gradients]


def lion_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From imagined `rewards distances disagreements` `(B, H)` and `dials` `(B,)`.

    Optional: `penalties` `(B, H)` (0), `survivals` `(B, H)` (1), `gamma` (0.99), `pull` (1), `pessimism`
    (0.4), `free_disagreement` (1.5). Rewards and penalties are in units of the rewards' spread, disagreements
    multiples of what is typical on the log.
    """
    named = named_tensors(inputs)
    rewards = named["rewards"] - named.get("penalties", torch.zeros(()))
    gamma = float(inputs.get("gamma", 0.99))
    weights = {
        name: float(inputs.get(name, default))
        for name, default in (("pull", 1.0), ("pessimism", 0.4), ("free_disagreement", 1.5))
    }
    gain = dialled_gain(
        rewards, named["distances"], named["disagreements"], named["dials"].unsqueeze(-1), **weights
    )
    survivals = named.get("survivals", torch.ones_like(rewards))
    alive = torch.cat([torch.ones_like(survivals[..., :1]), survivals[..., :-1].cumprod(-1)], dim=-1)
    discounts = gamma ** torch.arange(rewards.shape[-1], dtype=rewards.dtype)
    return {"actor_loss": -((discounts * alive * gain).sum(-1) / discounts.sum()).mean(-1)}


class LIONRunConfig(LIONConfig, LIONNetworkConfig, ModelBasedFields):
    """Every setting of a LION run."""

    @model_validator(mode="after")
    def _stages_have_rates_of_their_own(self) -> Self:
        if self.learning_rate_schedule != "constant" or self.warmup_steps:
            raise ValueError(
                "learning_rate_schedule must be constant and warmup_steps 0: every stage of lion has a rate "
                f"that falls by itself, got {self.learning_rate_schedule!r} and {self.warmup_steps}"
            )
        return self

    def mistaken_lengths(self, total: int | None, online: int | None) -> list[str]:
        """The third stage must be reached, and a model that is fitted once is no help in learning online."""
        first, lines = self.model_updates + self.behavior_updates, []
        if total is not None and total <= first:
            lines.append(
                f"total_timesteps must be > {first}, the updates of model and behaviour before the policy is "
                f"searched for, got {total}; lower algo_kwargs.model_updates or behavior_updates for less"
            )
        if online:
            lines.append(
                f"online_timesteps must be 0 for lion, whose model is fitted once, got {online}; add new "
                "rows to the data and train again"
            )
        return lines


RECIPE = Recipe("lion", LION, MLPLIONModel, LIONRunConfig, title="LION", papers=("2205.10629",))
