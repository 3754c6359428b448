"""A learned model of what happens next, and what a policy earns in it: the second opinion."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.dynamics import STEPS_AHEAD, ColumnErrors, Dynamics, column_errors
from rl_training.core.signals import Signals
from rl_training.core.streams import derive_seed, torch_generator
from rl_training.data.episodes import IntArray
from rl_training.judging.explanation import Act, Course, typical_episode
from rl_training.judging.fit import FitCache, OnProgress, Rows, fit
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog, NameOf
from rl_training.judging.policies import JudgedPolicy, rollout_actions
from rl_training.judging.settings import JudgeConfig
from rl_training.models.dynamics import DynamicsModel

NEGLIGIBLE = 0.005
"""Rollouts end when the discount has fallen to this; what would follow is added from the last rewards."""

LONGEST = 2000

FEWEST_ENDS, SMALLEST_SHARE_OF_ENDS = 5, 0.05
"""So many ends have to lie beyond a bound, of all there are, before it is said to be what ends an episode."""

_SAMPLED_STEPS = 40
_SAMPLED_STARTS = 50


@dataclass(frozen=True)
class Rollouts:
    """A policy's value in each member, and states and actions met on the way."""

    values: Float64Array
    """`[members]`, in the user's units"""
    obs: FloatArray
    actions: FloatArray
    costs: tuple[Paid, ...] = ()
    """what every cost comes to"""


RowCost = Callable[[Tensor, Tensor], Tensor]
"""Scaled states and actions `[worlds, n, width]` -> what a step costs, `[worlds, n]`"""


@dataclass(frozen=True)
class Paid:
    """One cost in each member, `[members]`."""

    per_step: Float64Array
    """discounted, by discounted steps"""
    per_episode: Float64Array
    """the sum until the end; NaN where rollouts do not go so far"""


def fit_dynamics(
    log: JudgedLog, config: JudgeConfig, on_progress: OnProgress, cache: FitCache | None = None
) -> Dynamics:
    """The ensemble, trained on all rows of the log."""
    columns = model_columns(log)
    model = DynamicsModel(
        log.obs.shape[1],
        log.actions.shape[1],
        hidden_sizes=config.model_hidden_sizes,
        members=config.model_members,
        generator=torch_generator(config.seed, "judge", "dynamics networks"),
    )
    seed = derive_seed(config.seed, "dynamics") % 2**31
    learner = Dynamics(model, seed=seed, learning_rate=config.learning_rate)
    learner.look_at_data(columns, scaled=True)
    fit(
        learner,
        Rows(lambda rows: {name: values[rows] for name, values in columns.items()}, len(log)),
        name="dynamics",
        updates=config.model_updates,
        config=config,
        networks=config.model_members,
        on_progress=on_progress,
        cache=cache,
    )
    return learner


def errors_of_the_model(
    log: JudgedLog, learner: Dynamics, name_of: NameOf, signals: Signals | None
) -> tuple[ColumnErrors, ...]:
    """By the members that have not seen an episode; of signals, the columns that they are made of.

    Signals follow from columns by their program, step by step from the first row of an episode: in the
    middle of one, only the next step is asked.
    """
    rows, width = model_columns(log), log.obs.shape[1]
    unseen = learner.row_weights(rows["episodes"]) == 0
    plain = range(width) if signals is None else signals.program.plain_places or range(width)
    errors = column_errors(
        learner.dynamics,
        rows,
        torch.from_numpy(log.ends),
        [*(name_of("observation", index) for index in range(width)), "reward"],
        torch.from_numpy(np.append(log.obs_scale.spread, log.reward_scale.spread)),
        unseen=unseen,
        steps=STEPS_AHEAD if signals is None else STEPS_AHEAD[:1],
    )
    return tuple(errors[index] for index in (*plain, width))


def model_columns(log: JudgedLog) -> dict[str, Tensor]:
    """Rewards as they are: a discount of its own belongs to a row's values, not to its reward."""
    return {**log.columns, "rewards": torch.from_numpy(log.reward_scale.rewards(log.rewards))}


@dataclass(frozen=True)
class EndLimits:
    """Bounds of single columns that end an episode wherever they are passed: a trip, a fall.

    A network that has seen a few hundred ends among many rows knows such a bound badly, and keeps those alive
    that passed it long ago; the log itself knows it well.
    """

    low: Tensor
    high: Tensor
    """`[O]`, scaled as observations are; infinite where there is no bound"""
    are_all: bool
    """whether no episode of the log ended otherwise"""

    @classmethod
    def of(cls, log: JudgedLog) -> EndLimits:
        """Bounds beyond which episodes ended and from where none ever went on: the fewest that say most."""
        obs, after, ended = log.columns["obs"], log.columns["next_obs"], log.columns["dones"] > 0
        going_on = torch.cat([obs, after[~ended]])
        bounds = torch.cat([going_on.amin(0), going_on.amax(0)])
        beyond = torch.cat([after[ended] < bounds[: obs.shape[1]], after[ended] > bounds[obs.shape[1] :]], 1)
        fewest = max(FEWEST_ENDS, SMALLEST_SHARE_OF_ENDS * len(beyond))
        kept, left = torch.zeros(len(bounds), dtype=torch.bool), torch.ones(len(beyond), dtype=torch.bool)
        while (explained := beyond[left].sum(0)).max() >= fewest:
            most = int(explained.argmax())
            kept[most], left = True, left & ~beyond[:, most]
        none = torch.full_like(bounds, torch.inf)
        none[: obs.shape[1]] *= -1.0
        low, high = torch.where(kept, bounds, none).reshape(2, -1)
        return cls(low, high, bool(kept.any()) and not left.any())

    def passed(self, state: Tensor) -> Tensor:
        """`[…, O]` -> `[…]`"""
        return ((state < self.low) | (state > self.high)).any(-1)


class FollowedSignals:
    """Signals of predicted columns: what a network would predict of lags drifts apart from what they lag.

    Rollouts begin with episodes, so that nothing lies before them but the fill of past actions.
    """

    def __init__(self, signals: Signals, log: JudgedLog, first: FloatArray) -> None:
        self.program, self.scale = signals.program, log.obs_scale
        self.columns = self.program.plain_places
        rows = len(first)
        done = np.tile(np.array(signals.first_action, dtype=np.float32), (rows, 1))
        nothing = np.zeros((rows, self.program.layout.size))
        seen = first[:, self.columns]
        self.state = self.program.step(seen, done, nothing, np.ones(rows, dtype=np.bool_))[1]

    def follow(self, predicted: Tensor, actions: FloatArray) -> Tensor:
        """Scaled observations `[worlds, n, width]` of which the columns count, as they follow `actions`."""
        obs = self.scale.undo(predicted.reshape(-1, predicted.shape[-1]).numpy())
        going_on = np.zeros(len(obs), dtype=np.bool_)
        signals, self.state = self.program.step(obs[:, self.columns], actions, self.state, going_on)
        return torch.from_numpy(self.scale.apply(signals)).reshape(predicted.shape)


class LoggedMasks:
    """Masks that were logged, in place of what a network predicts of them: shares, which nobody has seen."""

    def __init__(self, log: JudgedLog) -> None:
        self.size = log.mask_size
        masks = log.columns["next_obs"][:, -self.size :].numpy()
        self.known = torch.from_numpy(np.unique(masks, axis=0))

    def follow(self, predicted: Tensor, actions: FloatArray) -> Tensor:
        """Scaled observations `[worlds, n, width]` that end with the nearest mask of the log."""
        seen, mask = predicted[..., : -self.size], predicted[..., -self.size :]
        nearest = torch.cdist(mask, self.known).argmin(-1)
        return torch.cat([seen, self.known[nearest]], dim=-1)


def followed_columns(
    signals: Signals | None, log: JudgedLog, first: FloatArray
) -> FollowedSignals | LoggedMasks | None:
    """What follows the signals of a log from its `first` observations, or its masks; none where a network
    must."""
    if log.mask_size:
        return LoggedMasks(log)  # which stand beside no signals
    if signals is None or not signals.program.plain_places:
        return None
    in_numbers = log.actions.shape[1] == len(signals.program.actions)  # shares of choices are no columns
    return FollowedSignals(signals, log, first) if in_numbers else None


@torch.no_grad()
def roll_out(
    learner: Dynamics,
    log: JudgedLog,
    policy: JudgedPolicy,
    config: JudgeConfig,
    signals: Signals | None = None,
    costs: Sequence[RowCost] = (),
    lengths: Float64Array | None = None,
) -> Rollouts:
    """Follow the policy from logged first states, each member in a world of its own.

    Members keep to their own world for a whole rollout, so that their spread says how far the value depends
    on what the log leaves open. States stay inside the log's range. An end is a loss of weight, not a draw;
    where a bound that ends episodes is passed, all of it is lost.
    `costs` say what steps cost beside the reward; `lengths` of logged episodes, where sums are asked for.
    """
    draws = np.random.default_rng(derive_seed(config.seed, "judge", "rollouts"))
    chosen = draws.choice(log.episodes, min(log.episodes, config.rollout_starts), replace=False)
    noise = torch_generator(config.seed, "judge", "rollout noise")
    dynamics = learner.dynamics
    first = log.columns["obs"][torch.from_numpy(log.starts[chosen])]
    members = dynamics.members
    state, alive = first.expand(members, -1, -1), torch.ones(members, len(first), dtype=torch.float64)
    act = rollout_actions(policy, members, config)
    followed = followed_columns(signals, log, np.tile(log.obs[log.starts[chosen]], (members, 1)))
    ends = EndLimits.of(log)
    steps = rollout_steps(log)
    until = np.zeros(len(chosen)) if lengths is None else lengths[chosen]
    further = max(steps, min(LONGEST, int(until.max())))
    sampled = set(np.unique((-log.horizon * np.log1p(-np.linspace(0, 0.99, _SAMPLED_STEPS))).astype(int)))
    met: list[tuple[FloatArray, FloatArray]] = []
    earned = torch.zeros(further, members, dtype=torch.float64)
    lived = torch.zeros(further, members, dtype=torch.float64)
    paid = torch.zeros(len(costs), further, members, dtype=torch.float64)
    summed = torch.zeros(len(costs), members, dtype=torch.float64)
    scale = log.reward_scale
    for step in range(further):
        if not alive.any():
            break
        obs = log.obs_scale.undo(state.reshape(-1, state.shape[-1]).numpy())
        actions = act(obs)
        if step in sampled:
            living = np.flatnonzero(alive.reshape(-1).numpy() > 0.5)
            picked = draws.choice(living, min(len(living), _SAMPLED_STARTS), replace=False)
            met.append((obs[picked], actions[picked]))
        scaled = torch.from_numpy(log.action_scale.apply(actions)).reshape(members, len(first), -1)
        # Members share their noise, so that only what they believe sets them apart.
        drawn = torch.randn((len(first), state.shape[-1] + 1), generator=noise)
        mean, log_std = dynamics(state, scaled)
        following, reward = dynamics.following(state, mean + log_std.exp() * drawn)
        following = dynamics.within_range(following)
        ended = ends.passed(following).to(reward.dtype)
        if learner.has_ends:
            odds, last = dynamics.ends(state, scaled, following)
            ended = ended if ends.are_all else torch.maximum(ended, odds.sigmoid())
            reward = reward + ended * (last - reward)
        reward = reward.double()
        earned[step] = (alive * (reward * scale.spread + scale.center)).mean(-1)
        lived[step] = alive.mean(-1)
        for place, cost in enumerate(costs):
            weighed = alive * cost(state, scaled)
            paid[place, step] = weighed.mean(-1)
            summed[place] += (weighed * torch.from_numpy(step < until)).mean(-1)
        alive = alive * (1.0 - ended.double())
        state = following if followed is None else followed.follow(following, actions)
    met_obs, met_actions = (np.concatenate(parts) for parts in zip(*met, strict=True))
    lived_steps = _discounted(lived[:steps], log)
    told = summed.numpy() if until.max() <= further else np.full(summed.shape, np.nan)
    return Rollouts(
        _discounted(earned[:steps], log),
        met_obs,
        met_actions,
        tuple(
            Paid(_discounted(each[:steps], log) / np.maximum(lived_steps, 1e-9), sums)
            for each, sums in zip(paid, told, strict=True)
        ),
    )


@torch.no_grad()
def relive(
    learner: Dynamics, log: JudgedLog, act: Act, rows: IntArray, signals: Signals | None = None
) -> Float64Array:
    """A logged episode as each network believes it would have gone under `act`: `[steps, members, O + 1]`,
    observations and reward in the user's units.

    What a network cannot explain of a logged step is a disturbance that would have come all the same
    (abduction, action, prediction: Pearl 2009, §7.1). So the logged actions lead to the logged episode.
    """
    dynamics, scale = learner.dynamics, log.reward_scale
    columns = {name: values[torch.from_numpy(rows)] for name, values in model_columns(log).items()}
    obs, came = columns["obs"], torch.cat([columns["obs"][1:], columns["next_obs"][-1:]])
    expected, _ = dynamics(obs.unsqueeze(0), columns["actions"].unsqueeze(0))
    disturbances = dynamics.change_of(obs, came, columns["rewards"]) - expected
    state = obs[:1].expand(dynamics.members, 1, -1)
    followed = followed_columns(signals, log, np.tile(log.obs[rows[:1]], (dynamics.members, 1)))
    steps = []
    for step in range(len(rows)):
        seen = log.obs_scale.undo(state.reshape(dynamics.members, -1).numpy())
        actions = act(seen)
        mean, _ = dynamics(state, torch.from_numpy(log.action_scale.apply(actions)).unsqueeze(1))
        following, reward = dynamics.following(state, mean + disturbances[:, step : step + 1])
        following = dynamics.within_range(following)
        steps.append(np.concatenate([seen, reward.double().numpy() * scale.spread + scale.center], axis=1))
        state = following if followed is None else followed.follow(following, actions)
    return np.stack(steps)


def what_if(
    learner: Dynamics,
    log: JudgedLog,
    act: Act,
    columns: Mapping[str, int],
    signals: Signals | None = None,
) -> tuple[Course, ...]:
    """The typical episode with what the networks believe of some `columns`, by name, and of the reward."""
    rows = typical_episode(log)
    believed = relive(learner, log, act, rows, signals)
    logged = np.concatenate([log.obs[rows], log.rewards[rows, None]], axis=1)
    found = []
    for name, place in {**columns, "reward": -1}.items():
        told = believed[:, :, place]
        lines = logged[:, place], told.mean(axis=1), told.min(axis=1), told.max(axis=1)
        found.append(Course(name, *(tuple(each.tolist()) for each in lines)))
    return tuple(found)


def rollout_steps(log: JudgedLog) -> int:
    if log.gamma == 1.0:
        return min(LONGEST, int(log.lengths.max()))
    return min(LONGEST, math.ceil(math.log(NEGLIGIBLE) / math.log(log.step_discount)))


def _discounted(earned: Tensor, log: JudgedLog) -> Float64Array:
    """Rewards `[steps, members]` -> values; what follows the last step goes on as the last tenth was."""
    steps = len(earned)
    discounts = log.step_discount ** torch.arange(steps, dtype=torch.float64)
    value = (discounts.unsqueeze(-1) * earned).sum(0)
    if log.gamma < 1.0:
        value += log.step_discount**steps * log.horizon * earned[-max(1, steps // 10) :].mean(0)
    return value.numpy()
