"""A model of the plant: an ensemble of networks that say what follows an action."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from rl_training.config import setting
from rl_training.core.schema import MAX_CRITICS
from rl_training.models.actors import DialledTanh
from rl_training.models.models import MLPSACModel, PolicyModel, SACNetworkConfig
from rl_training.models.networks import Activation, NetworkConfig, NetworkPlan, build_network, widths

LOG_STD_RANGE = (-5.0, 1.0)

SMALLEST_SPREAD = 1e-6
STEADY = 1e-3
"""Spread of a column's changes, as a share of their mean, up to which they are all alike."""


def gaussian_outputs(outputs: Tensor) -> tuple[Tensor, Tensor]:
    """A network's outputs as means and log stds; these stay in a range in which a fit is stable."""
    mean, spread = outputs.chunk(2, dim=-1)
    low, high = LOG_STD_RANGE
    return mean, low + (high - low) * spread.sigmoid()


class DynamicsEnsemble(nn.Module):
    """Networks (s, a) -> change of state and reward, with their spread, and (s, a, s') -> odds of an end,
    what it earns and, where the ensemble is `penalised`, what costs take off the reward.

    Members are the axis before the rows: `[*S, members, B, …]`; states and actions that are the same for all
    of them have a one there. Ends are mostly a matter of where a step leads (a robot that has fallen), and
    so are costs (it is too hot), so s' is asked as well. Inputs are taken, and changes given, in units of the
    spread that they have in the log (`set_scales`). Rewards of steps that ended an episode are apart: what a
    trip costs, often much and seldom, would drown what all other steps earn. Of observations that are
    signals, the columns are predicted; the others follow from them by their program (`set_predicted`).
    """

    input_center: Tensor
    input_spread: Tensor
    change_center: Tensor
    change_spread: Tensor
    lowest: Tensor
    highest: Tensor
    residual: Tensor
    """`[members, 1, O + 1]`: std of errors on unseen episodes, in units of the spread of changes"""
    penalties: Tensor
    """what costs take off the reward: mean, spread, least and most in the log"""
    end_rewards: Tensor
    """rewards of the steps that ended an episode: the same four numbers"""
    predicted: Tensor
    """1 for numbers that are predicted, 0 for signals, whose change counts as 0 in every unit"""
    has_ends: Tensor
    """1 where the log has terminations: without any, the odds of an end are neither learned nor asked"""

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        members: int,
        plan: NetworkPlan | None = None,
        *,
        probabilistic: bool = True,
        penalised: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.obs_dim, self.members, self.probabilistic = obs_dim, members, probabilistic
        self.penalised = penalised
        plan = plan or NetworkPlan(part="critic")
        inputs, outputs = obs_dim + action_dim, (1 + probabilistic) * (obs_dim + 1)
        self.net = build_network(inputs, outputs, plan, (members,), generator=generator)
        self.end_net = build_network(inputs + obs_dim, 2, plan, (members,), generator=generator)
        self.register_buffer("end_rewards", torch.tensor([[0.0, 1.0, -1e9, 1e9]]))
        if penalised:
            self.penalty_net = build_network(inputs + obs_dim, 1, plan, (members,), generator=generator)
            self.register_buffer("penalties", torch.tensor([[0.0, 1.0, -1e9, 1e9]]))
        for name, value, size in (
            ("input_center", 0.0, inputs),
            ("input_spread", 1.0, inputs),
            ("change_center", 0.0, obs_dim + 1),
            ("change_spread", 1.0, obs_dim + 1),
            ("predicted", 1.0, obs_dim + 1),
            ("lowest", -1e9, obs_dim),
            ("highest", 1e9, obs_dim),
        ):
            self.register_buffer(name, torch.full((1, 1, size), value))
        self.register_buffer("residual", torch.ones(members, 1, obs_dim + 1))
        self.register_buffer("has_ends", torch.ones(1, 1))

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log std of change and reward in units of their spread, `[*S, members, B, O + 1]` each.

        Where the ensemble is not `probabilistic`, the std is that of its errors on episodes it has not seen.
        """
        outputs = self.net(self._scaled(torch.cat([obs, actions], dim=-1)))
        if self.probabilistic:
            mean, log_std = gaussian_outputs(outputs)
            return mean * self.predicted, log_std
        return outputs * self.predicted, self.residual.log().expand(outputs.shape)

    def following(self, obs: Tensor, change: Tensor) -> tuple[Tensor, Tensor]:
        """Successor `[…, O]` and reward `[…]` from a change in units of its spread."""
        plain = change * self.change_spread + self.change_center
        return obs + plain[..., :-1], plain[..., -1]

    def change_of(self, obs: Tensor, next_obs: Tensor, rewards: Tensor) -> Tensor:
        """The logged change in units of its spread: what `forward` is to say."""
        plain = torch.cat([next_obs - obs, rewards.unsqueeze(-1)], dim=-1)
        return (plain - self.change_center) / self.change_spread * self.predicted

    def ends(self, obs: Tensor, actions: Tensor, next_obs: Tensor) -> tuple[Tensor, Tensor]:
        """Log odds that the step ended the episode, and what it earns if it did, `[*S, members, B]` each."""
        odds, reward = self.end_net(self._with_successor(obs, actions, next_obs)).unbind(-1)
        return odds, within(
            self.end_rewards, reward * self.end_rewards[..., 1:2] + self.end_rewards[..., 0:1]
        )

    def ended(self, obs: Tensor, actions: Tensor, next_obs: Tensor, rewards: Tensor) -> tuple[Tensor, Tensor]:
        """Probability that the step ended the episode, and the reward to expect, where `rewards` are those of
        going on."""
        odds, last = self.ends(obs, actions, next_obs)
        ended = odds.sigmoid()
        return ended, rewards + ended * (last - rewards)

    def penalty(self, obs: Tensor, actions: Tensor, next_obs: Tensor) -> Tensor:
        """What costs take off the reward of the step, on average and in its units, `[*S, members, B]`."""
        center, spread = self.penalties[..., 0:1], self.penalties[..., 1:2]
        outputs = self.penalty_net(self._with_successor(obs, actions, next_obs)).squeeze(-1)
        predicted: Tensor = outputs * spread + center
        return predicted

    def possible_penalty(self, predicted: Tensor) -> Tensor:
        """Kept within what the log has: a cost that happens never or always is not exceeded by promises."""
        return within(self.penalties, predicted)

    def _with_successor(self, obs: Tensor, actions: Tensor, next_obs: Tensor) -> Tensor:
        known, width = self._scaled(torch.cat([obs, actions], dim=-1)), self.obs_dim
        center, spread = self.input_center[..., :width], self.input_spread[..., :width]
        return torch.cat([known, (next_obs - center) / spread], dim=-1)

    def _scaled(self, inputs: Tensor) -> Tensor:
        return (inputs - self.input_center) / self.input_spread

    def within_range(self, obs: Tensor) -> Tensor:
        """States kept inside the log's range and the margin around it that `set_scales` was told."""
        return torch.minimum(torch.maximum(obs, self.lowest), self.highest)

    @torch.no_grad()
    def set_predicted(self, columns: Sequence[int]) -> None:
        """Which observations are predicted; the reward always is."""
        self.predicted.zero_()
        self.predicted[..., [*columns, self.obs_dim]] = 1.0

    @torch.no_grad()
    def set_scales(self, columns: Mapping[str, Tensor], *, margin: float = 0.0, scaled: bool = False) -> None:
        """Units and range of a log's `obs actions rewards next_obs dones`, a row each, and of its `penalties`
        where the ensemble predicts them.

        Of inputs and rewards that are `scaled` already, centres and spreads are left as they are.
        """
        obs, following = columns["obs"], columns["next_obs"]
        change = torch.cat([following - obs, columns["rewards"].unsqueeze(-1)], dim=-1).double()
        spread, center = change.std(dim=0, correction=0), change.mean(dim=0)
        ended = columns["dones"] > 0
        if ended.any() and not ended.all():
            going_on = change[~ended, -1]
            spread[-1], center[-1] = going_on.std(correction=0), going_on.mean()
        if ended.any():
            self.end_rewards.copy_(four_numbers(columns["rewards"][ended]))
        level = center.abs()
        # A clock changes by the same in every row: by the noise of rounding nobody could predict it. Next to
        # nothing for a column that never changes, so that it stays as it is.
        spread = torch.where(spread > STEADY * level, spread, level)
        self.change_spread.copy_(spread.clamp_min(SMALLEST_SPREAD))
        if not scaled:
            inputs = torch.cat([obs, columns["actions"]], dim=-1).double()
            spread = inputs.std(dim=0, correction=0)
            self.input_center.copy_(inputs.mean(0))
            self.input_spread.copy_(torch.where(spread > SMALLEST_SPREAD, spread, 1.0))
            self.change_center.copy_(center)
        # The states that ended episodes are among the successors only.
        lowest = torch.minimum(obs.amin(0), following.amin(0))
        highest = torch.maximum(obs.amax(0), following.amax(0))
        self.lowest.copy_(lowest - margin * (highest - lowest))
        self.highest.copy_(highest + margin * (highest - lowest))
        self.has_ends.fill_(float(columns["dones"].any()))
        if self.penalised:
            self.penalties.copy_(four_numbers(columns["penalties"]))


def four_numbers(values: Tensor) -> Tensor:
    """Mean, spread, least and most of what a log has."""
    known = values.double()
    spread = known.std(correction=0).clamp_min(SMALLEST_SPREAD)
    return torch.stack([known.mean(), spread, known.min(), known.max()])


def within(known: Tensor, predicted: Tensor) -> Tensor:
    """Kept between the least and the most of these four."""
    return torch.minimum(torch.maximum(predicted, known[..., 2:3]), known[..., 3:4])


class DynamicsNetworks(NetworkConfig):
    """Sizes of the ensemble."""

    members: int = setting(
        5, "dynamics networks, each on its own resample of the episodes", ge=1, most=MAX_CRITICS
    )
    probabilistic: bool = setting(True, "also learn how far the next state and reward scatter")

    def ensemble(
        self, obs_dim: int, action_dim: int, generator: torch.Generator | None, *, penalised: bool = False
    ) -> DynamicsEnsemble:
        return DynamicsEnsemble(
            obs_dim,
            action_dim,
            self.members,
            self.plan("critic"),
            probabilistic=self.probabilistic,
            penalised=penalised,
            generator=generator,
        )


class LIONNetworkConfig(DynamicsNetworks):
    """Keywords of `MLPLIONModel`."""

    hidden_sizes: tuple[int, ...] = widths((64, 64), "widths of the hidden layers of all networks")
    activation: Activation = setting(
        "silu", "function behind every hidden layer; a smooth one has useful slopes"
    )
    probabilistic: bool = setting(False, "also learn how far the next state and reward scatter")
    penalty: dict[str, float] = setting(
        {},
        "weight of each cost that is taken off the reward, such as {overheat: 3}; what they take is "
        "predicted beside the reward and paid step by step",
    )


class MLPLIONModel(PolicyModel):
    """A policy that takes a dial behind the observation, and a model of the plant."""

    config_class = LIONNetworkConfig
    config: LIONNetworkConfig
    dynamics: DynamicsEnsemble

    def build(self, generator: torch.Generator | None) -> None:
        plan = self.config.plan("actor")
        self.actor = DialledTanh(self.obs_dim + 1, self.action_dim, plan, generator=generator)
        penalised = bool(self.config.penalty)
        self.dynamics = self.config.ensemble(self.obs_dim, self.action_dim, generator, penalised=penalised)


class DynamicsModel(PolicyModel):
    """An ensemble alone; it predicts and does not act."""

    config_class = DynamicsNetworks
    config: DynamicsNetworks
    dynamics: DynamicsEnsemble

    def build(self, generator: torch.Generator | None) -> None:
        self.dynamics = self.config.ensemble(self.obs_dim, self.action_dim, generator)


class ModelBasedSACNetworkConfig(SACNetworkConfig):
    """Keywords of `MLPModelBasedSACModel`."""

    members: int = setting(
        5, "dynamics networks, each on its own resample of the episodes", ge=1, most=MAX_CRITICS
    )
    model_hidden_sizes: tuple[int, ...] = widths((200, 200), "widths of the hidden layers of the model")


class MLPModelBasedSACModel(MLPSACModel):
    """SAC's networks, and a model of the plant that also learns how far the next state scatters."""

    config_class = ModelBasedSACNetworkConfig
    config: ModelBasedSACNetworkConfig
    dynamics: DynamicsEnsemble

    def build(self, generator: torch.Generator | None) -> None:
        super().build(generator)
        plan = NetworkPlan(hidden_sizes=self.config.model_hidden_sizes, activation="silu", part="critic")
        self.dynamics = DynamicsEnsemble(
            self.obs_dim, self.action_dim, self.config.members, plan, generator=generator
        )
