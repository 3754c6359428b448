"""A policy with two heads, for reward and cost, that switches by what may still be spent."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import reduce
from typing import Literal

import torch
from torch import Tensor, nn

from rl_training.config import ConfigModel, setting
from rl_training.models.actors import Actor, TanhMeanGaussian, draw
from rl_training.models.critics import QEnsemble, StateValue, each_member
from rl_training.models.layers import dropout_scale
from rl_training.models.models import IQLNetworkConfig, PolicyModel
from rl_training.models.networks import Network

HEADS = 2
SMALLEST_DISCOUNT = 1e-30
"""Stands for a discount of 0, whose logarithm is no number."""


class Budget(ConfigModel):
    """How a limit becomes what the discounted cost of the rest of an episode may be."""

    gamma: float = setting(0.99, "discount", ge=0, le=1)
    steps: int = setting(300, "of an episode; a longer one is given the limit anew every so many", ge=1)
    per: Literal["step", "episode"] = setting("step", "what the limit is for")

    def discounted(self, limit: Tensor, spent: Tensor, step: Tensor) -> Tensor:
        """b_t = κ_t (1 - γ^n) / ((1 - γ) n) with n = T - t steps left and κ_t = max(0, limit - spent).

        `limit` is that of an episode of T steps, or of each step; `step` counts from 0.
        """
        begun = (step / self.steps).floor() + 1.0  # episodes of T steps, this one included
        left = begun * self.steps - step
        allowed = limit * self.steps if self.per == "step" else limit
        rest = (begun * allowed - spent).clamp(min=0.0)
        if self.gamma == 1.0:
            return rest
        faded = (left * math.log(max(self.gamma, SMALLEST_DISCOUNT))).exp()
        return rest * (faded - 1.0) / (left * (self.gamma - 1.0))


def second_head(rewards: Sequence[Tensor], costs: Sequence[Tensor], budget: Tensor) -> Tensor:
    """1 where the second of two heads acts, else 0; from the heads' values and costs, of `budget`'s shape.

    Among heads whose cost is below the budget the one that earns most, and if there is none the one that
    costs least. Written without branches, and with few operations: files compute it too.
    """
    (first_reward, second_reward), (first_cost, second_cost) = rewards, costs

    def number(condition: Tensor) -> Tensor:
        return condition.to(budget.dtype)

    fits = number(first_cost < budget), number(second_cost < budget)
    breaks = number(first_cost >= budget), number(second_cost >= budget)
    earns_more, costs_less = number(second_reward > first_reward), number(second_cost < first_cost)
    return fits[0] * fits[1] * earns_more + breaks[0] * (fits[1] + breaks[1] * costs_less)


def least_of_members(critic: QEnsemble, obs: Tensor, actions: Tensor) -> Tensor:
    """min_i Q_i(s, a), `[*S, B, 1]`, member by member: files have no axis for an ensemble.

    All but TorchScript, which has one and knows no members.
    """
    if torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]  # torch leaves it untyped
        together: Tensor = critic(obs, actions)
        return together.amin(-2).unsqueeze(-1)
    return reduce(torch.minimum, each_member(critic, torch.cat([obs, actions], dim=-1)))


class SwitchingActor(Actor):
    """One of two heads of a trunk: a = tanh(m_h(s)) with h by what the critics say and what may be spent.

    It is asked with an observation and, behind it, the limit, what was spent in the episode, and its steps.
    """

    kind = "switching"
    draws = "the head that the critics choose; action = tanh(m_h); a draw is clip(tanh(m_h) + std_h * noise)"
    choices = 3
    """numbers behind the observation"""

    def __init__(
        self, heads: TanhMeanGaussian, critic: QEnsemble, cost_critic: QEnsemble, budget: Budget | None = None
    ) -> None:
        nn.Module.__init__(self)  # the networks exist already: nothing of Actor's is built
        self.obs_dim, self.action_dim = heads.obs_dim + self.choices, heads.action_dim // HEADS
        self.heads, self.critic, self.cost_critic = heads, critic, cost_critic
        self.budget = budget or Budget()

    @property
    def net(self) -> Network:  # type: ignore[override]  # it is that of the heads
        return self.heads.net

    def log_probs(self, obs: Tensor, actions: Tensor, dropout_noise: Tensor | None = None) -> Tensor:
        """log π_h(a|s) of logged actions, `[2, *S, B]`."""
        heads = self.heads
        keep = None if dropout_noise is None else dropout_scale(dropout_noise, heads.dropout)
        parts = (heads.mean(obs, keep).chunk(HEADS, dim=-1), heads.log_std().chunk(HEADS, dim=-1))
        return torch.stack([heads.density(actions, *head) for head in zip(*parts, strict=True)])

    def switched(self, asked: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Means of both heads, `[*S, B, A]` each, and 1 where the second one acts, `[*S, B, 1]`."""
        obs, *given = torch.split(asked, [self.obs_dim - self.choices, *[1] * self.choices], dim=-1)
        first, second = self.heads.mode(obs).chunk(HEADS, dim=-1)
        rewards = [least_of_members(self.critic, obs, actions) for actions in (first, second)]
        costs = [-least_of_members(self.cost_critic, obs, actions) for actions in (first, second)]
        return first, second, second_head(rewards, costs, self.budget.discounted(*given))

    def mode(self, obs: Tensor) -> Tensor:
        first, second, chosen = self.switched(obs)
        return torch.where(chosen > 0.5, second, first)

    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log std of the head that acts."""
        first, second, chosen = self.switched(obs)
        of_first, of_second = self.heads.log_std().chunk(HEADS, dim=-1)
        return torch.where(chosen > 0.5, second, first), torch.where(chosen > 0.5, of_second, of_first)

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        return self.heads.sample(*self.distribution(obs), noise)

    def draw(self, obs: Tensor, noise: Tensor) -> Tensor:
        return draw(self.heads, self.distribution(obs), noise)


class MLPCAPSModel(PolicyModel):
    """A trunk with two heads; critics and a state value of the reward, and the same of the negative cost."""

    config_class = IQLNetworkConfig
    config: IQLNetworkConfig
    actor: SwitchingActor
    value: StateValue
    cost_value: StateValue

    def build(self, generator: torch.Generator | None) -> None:
        plan, sizes = self.config.plan("critic"), (self.obs_dim, self.action_dim)
        heads = TanhMeanGaussian(
            self.obs_dim,
            HEADS * self.action_dim,
            self.config.plan("actor"),
            dropout=self.config.actor_dropout,
            generator=generator,
        )
        critic, cost_critic = (QEnsemble(*sizes, 2, plan, generator=generator) for _ in range(HEADS))
        self.actor = SwitchingActor(heads, critic, cost_critic)
        self.value = StateValue(self.obs_dim, plan, generator=generator)
        self.cost_value = StateValue(self.obs_dim, plan, generator=generator)

    @property
    def critic(self) -> QEnsemble:
        return self.actor.critic

    @property
    def cost_critic(self) -> QEnsemble:
        return self.actor.cost_critic
