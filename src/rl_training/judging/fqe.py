"""Fitted Q evaluation: what would this policy earn? (Le et al. 2019, arXiv:1903.08738)

One stack of ensembles holds the values of all policies and, last, of the logged behaviour: the learner, how
it is fitted, and what is read off it in the user's units.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.dynamics import resample_weights
from rl_training.algorithms.learner import Batch, MetricTensors, Noise
from rl_training.algorithms.stack import stack_learners
from rl_training.config import setting
from rl_training.core.streams import torch_generator
from rl_training.data.episodes import IntArray
from rl_training.judging.fit import (
    BootstrapConfig,
    FitCache,
    FittedLearner,
    OnProgress,
    Rows,
    fit,
)
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog, Operator
from rl_training.judging.policies import PolicyActions
from rl_training.judging.settings import JudgeConfig
from rl_training.models.critics import QEnsemble
from rl_training.models.models import PolicyModel
from rl_training.models.networks import NetworkConfig, Norm

ENOUGH = 3.0
"""Updates x tau x (1 - gamma): the level of the values is then within exp(-3) of where it settles."""

FEWEST_UPDATES = 5000

BEYOND = 1.0
"""Spreads of returns by which targets may lie beyond what the logged rewards can add up to."""

_CHUNK = 4096


class ValueNetworks(NetworkConfig):
    """Sizes of the ensemble."""

    members: int = setting(8, "value networks", ge=1)
    # It keeps values bounded where the policy leaves the data; without it and without clipped targets the
    # recursion diverges on narrow logs.
    layer_norm: Norm = setting(True, "layer normalisation of hidden layers")


class ValueModel(PolicyModel):
    """An ensemble of values; it judges and does not act."""

    config_class = ValueNetworks
    config: ValueNetworks
    critic: QEnsemble

    def build(self, generator: torch.Generator | None) -> None:
        sizes = (self.obs_dim, self.action_dim, self.config.members)
        self.critic = QEnsemble(*sizes, self.config.plan("critic"), generator=generator)


class FQEConfig(BootstrapConfig):
    """Keywords of fitted Q evaluation."""

    tau: float = setting(0.05, "share of the networks that their targets take over per update", gt=0, le=1)
    terminal_value: float = setting(0.0, "value after a termination, in the scaled rewards' units")
    lowest: float = setting(..., "smallest value that targets may take")
    highest: float = setting(..., "largest value that targets may take")


class FQE(FittedLearner):
    """Takes `next_actions` of the judged policy (one draw or several side by side, `[*S, B, draws * A]`), the
    `episodes` of the rows, and which rows are `usable`."""

    config_class = FQEConfig
    config: FQEConfig
    needs: ClassVar[frozenset[str]] = frozenset({"next_actions", "episodes", "usable"})

    def setup(self) -> None:
        self.critic = self.part("critic", QEnsemble)
        self.target_critic = self.add_target("critic", self.critic)
        self.add_optimizer("critic", self.critic.parameters(), "critic")
        weights = resample_weights(self.critic.num_critics, self.config.episodes, self.config.resample_seed)
        self.scalars["resamples"] = weights.to(self.device)

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        with torch.no_grad():
            target = self.value_target(batch)
        errors = self.critic(batch["obs"], batch["actions"]) - target
        weights = self.row_weights(batch["episodes"]) * batch["usable"].unsqueeze(-2)
        loss = (weights * errors.square()).mean(-1).sum(-1)
        self.minimize("critic", loss)
        self.update_target("critic", self.critic, self.config.tau)
        return {"critic_loss": loss.detach(), "target_q_mean": target.mean((-2, -1))}

    def value_target(self, batch: Batch) -> Tensor:
        """r + gamma (Q' where it goes on, the terminal value where it ended), each member its own."""
        actions = batch["next_actions"]
        draws = actions.reshape(*actions.shape[:-1], -1, self.critic.action_dim)
        following = policy_values(self.target_critic, batch["next_obs"], draws)
        dones = batch["dones"].unsqueeze(-2)
        following = torch.where(dones > 0, self.config.terminal_value, following)
        discount = self.discount(batch)
        factor = discount if isinstance(discount, float) else discount.unsqueeze(-2)
        target = batch["rewards"].unsqueeze(-2) + factor * following
        clipped: Tensor = target.clamp(self.config.lowest, self.config.highest)
        return clipped

    def row_weights(self, episodes: Tensor) -> Tensor:
        """How often each member sees the episodes of these rows: `[*S, B]` -> `[*S, E, B]`."""
        resamples = self.scalars["resamples"]
        shape = (*resamples.shape[:-1], episodes.shape[-1])
        return resamples.gather(-1, episodes.unsqueeze(-2).expand(shape))


def policy_values(critic: QEnsemble, obs: Tensor, actions: Tensor) -> Tensor:
    """Mean Q over a policy's actions: `[*S, B, O]`, `[*S, B, draws, A]` -> `[*S, E, B]`."""
    if actions.shape[-2] == 1:  # a single call without the first layer cut in two
        return critic(obs, actions.squeeze(-2))  # type: ignore[no-any-return]  # a module's call
    return critic.many(obs, actions).mean(-1)


@dataclass(frozen=True)
class FittedValues:
    """What the ensembles say. The first axis is policies, the behaviour last; `[…, members]` follows."""

    values: Float64Array
    """value from the first states, `[policies + 1, members]`"""
    history: list[tuple[int, Float64Array]]
    """(updates, the same values) along training"""
    residuals: Float64Array
    """mean of target minus value over the rows a member has not seen, `[policies + 1, members]`"""
    logged: Float64Array
    """Q of the logged actions by members that have not seen the episode, `[policies + 1, rows]`"""
    own: Float64Array
    """Q of each policy's own actions there; the behaviour's own are the logged ones"""
    final: Float64Array
    """each policy's value of the state at which an episode ends, `[policies, episodes]`"""
    updates: int
    progress: float
    """updates x tau x (1 - gamma)"""
    taken_over: tuple[Float64Array, ...] = ()
    """per operator, the values `[policies + operators + 1, members]` where it took over"""

    def drift(self, index: int) -> float:
        """How far the mean value moved in the last third of training."""
        before = min(self.history, key=lambda entry: abs(entry[0] - 2 * self.updates / 3))
        return float(self.values[index].mean() - before[1][index].mean())

    def level_error(self, index: int, horizon: float) -> float:
        """An error that all members share, as far as it shows: the larger of two signs of it.

        The mean Bellman residual on unseen rows adds up over the horizon. The level settles exponentially,
        so that what the last third of training moved it by says what is left to come.
        """
        residual = abs(float(self.residuals[index].mean())) * horizon
        decay = math.exp(-self.progress / 3.0)
        return max(residual, abs(self.drift(index)) * decay / (1.0 - decay))


def updates_to_settle(config: JudgeConfig, log: JudgedLog) -> int:
    return math.ceil(ENOUGH * log.horizon / config.tau - 1e-6)


def updates_needed(config: JudgeConfig, log: JudgedLog) -> int:
    return config.updates or max(FEWEST_UPDATES, updates_to_settle(config, log))


def fit_values(
    log: JudgedLog,
    policies: Sequence[PolicyActions],
    config: JudgeConfig,
    on_progress: OnProgress,
    cache: FitCache | None = None,
    operators: Sequence[Operator] = (),
    name: str = "values",
) -> FittedValues:
    """Train one stack of ensembles and read everything off it that a judgement needs.

    Operators stand between policies and behaviour; as with this, their next actions are the logged ones.
    What the log holds as rewards may be a cost; `name` is what the fit is then called.
    """
    by_log = 1 + len(operators)
    here = stacked_actions(log, [each.here for each in policies], log.actions, by_log)
    there = stacked_actions(log, [each.there for each in policies], log.next_actions, by_log)
    usable = torch.ones(len(here), len(log))
    for index, known in enumerate((*(each.rows for each in operators), log.has_successor), len(policies)):
        usable[index] = torch.from_numpy(known.astype(np.float32))
    learner = stack_learners([new_learner(log, config) for _ in range(len(here))])
    assert isinstance(learner, FQE)
    updates = updates_needed(config, log)
    history: dict[str, list[Any]] = {"updates": [], "values": []}

    def observe(done: int) -> None:
        history["updates"].append(done)
        history["values"].append(first_values(learner, log, here))

    fit(
        learner,
        Rows(lambda rows: batch_of(log, there, usable, rows), len(log)),
        name=name,
        updates=updates,
        config=config,
        networks=config.members * len(here),
        on_progress=on_progress,
        observe=observe,
        history=history,
        cache=cache,
    )
    scale = log.reward_scale
    logged, residuals = _along_the_log(learner, log, there, usable)
    own = torch.cat([_held_out(learner, log, log.columns["obs"], here)[:-1], logged[-1:]])
    last = torch.from_numpy(np.flatnonzero(log.ends))
    final = _held_out(learner, log, log.columns["next_obs"][last], there[:, last], last)[:-1]
    final = torch.where(log.columns["dones"][last] > 0, scale.terminal, final)
    return FittedValues(
        values=history["values"][-1],
        history=list(zip(history["updates"], history["values"], strict=True)),
        residuals=residuals * scale.spread,
        logged=scale.values(logged),
        own=scale.values(own),
        final=scale.values(final),
        updates=updates,
        progress=updates * config.tau / log.horizon,
        taken_over=tuple(first_values(learner, log, here, each.starts) for each in operators),
    )


def batch_of(log: JudgedLog, there: Tensor, usable: Tensor, rows: Tensor) -> dict[str, Tensor]:
    """The same rows for every policy, each with its own next actions."""
    picked = {name: values[rows] for name, values in log.columns.items()}
    batch = {name: values.expand(len(there), *values.shape) for name, values in picked.items()}
    return {**batch, "next_actions": there[:, rows].flatten(-2), "usable": usable[:, rows]}


@torch.no_grad()
def first_values(learner: FQE, log: JudgedLog, here: Tensor, starts: IntArray | None = None) -> Float64Array:
    """Each member's value from the first states of its own resample of episodes, `[policies, members]`.

    Or from other rows, which count as often as their episodes are in the resample.
    """
    first = torch.from_numpy(log.starts if starts is None else starts)
    obs, own = log.columns["obs"][first], here[:, first]
    parts = [_own_values(learner, obs, own, part) for part in _pieces(len(first), own)]
    q = torch.cat(parts, -1).double()
    weights = learner.row_weights(log.columns["episodes"][first].expand(len(here), -1)).double()
    return log.reward_scale.values((weights * q).sum(-1) / weights.sum(-1))


def new_learner(log: JudgedLog, config: JudgeConfig) -> FQE:
    model = ValueModel(
        log.obs.shape[1],
        log.actions.shape[1],
        hidden_sizes=config.hidden_sizes,
        members=config.members,
        generator=torch_generator(config.seed, "judge", "value networks"),
    )
    scale = log.reward_scale
    low, high = log.value_range
    # Errors of networks lie on either side of a bound: cut off right at it, the targets of a cost that is
    # mostly nothing would be too high on average, and more so from row to row.
    lowest, highest = (
        (low - scale.level) / scale.spread - BEYOND,
        (high - scale.level) / scale.spread + BEYOND,
    )
    return FQE(
        model,
        seed=config.seed,
        learning_rate=config.learning_rate,
        gamma=log.gamma,
        tau=config.tau,
        episodes=log.episodes,
        resample_seed=config.seed,
        terminal_value=scale.terminal,
        lowest=lowest,
        highest=highest,
    )


def stacked_actions(
    log: JudgedLog, policies: Sequence[FloatArray], logged: FloatArray, by_log: int = 1
) -> Tensor:
    """Scaled actions `[policies + by_log, rows, draws, A]`; the log's single ones come last."""
    single = np.broadcast_to(logged[:, None], policies[0].shape)
    return torch.from_numpy(np.stack([log.action_scale.apply(e) for e in (*policies, *[single] * by_log)]))


def _pieces(rows: int, actions: Tensor) -> Iterator[slice]:
    """Rows a few at a time: each of them is as many as it has draws."""
    size = max(1, _CHUNK // actions.shape[-2])
    return (slice(start, start + size) for start in range(0, rows, size))


def _own_values(learner: FQE, obs: Tensor, actions: Tensor, part: slice) -> Tensor:
    """Values `[policies, members, rows]` of each policy's own actions in the same states."""
    with learner.own_products(_CHUNK):
        return policy_values(learner.critic, obs[part].expand(len(actions), -1, -1), actions[:, part])


@torch.no_grad()
def _held_out(
    learner: FQE, log: JudgedLog, obs: Tensor, actions: Tensor, rows: Tensor | None = None
) -> Tensor:
    """Values by the members that have not seen a row's episode, `[policies, rows]`; NaN where all have."""
    episodes = log.columns["episodes"] if rows is None else log.columns["episodes"][rows]
    parts = []
    for part in _pieces(len(obs), actions):
        q = _own_values(learner, obs, actions, part)
        unseen = learner.row_weights(episodes[part].expand(len(actions), -1)) == 0
        parts.append((q * unseen).sum(-2) / unseen.sum(-2))
    return torch.cat(parts, -1).double()


@torch.no_grad()
def _along_the_log(
    learner: FQE, log: JudgedLog, there: Tensor, usable: Tensor
) -> tuple[Tensor, Float64Array]:
    """Held-out values of the logged actions, and each member's mean Bellman residual on unseen rows."""
    logged = []
    total = torch.zeros(usable.shape[0], learner.scalars["resamples"].shape[-2], dtype=torch.float64)
    count = torch.zeros_like(total)
    for part in _pieces(len(log), there):
        batch = batch_of(log, there, usable, torch.arange(len(log))[part])
        with learner.own_products(_CHUNK):
            q, target = learner.critic(batch["obs"], batch["actions"]), learner.value_target(batch)
        unseen = (learner.row_weights(batch["episodes"]) == 0).float()
        logged.append((q * unseen).sum(-2) / unseen.sum(-2))
        counted = unseen * batch["usable"].unsqueeze(-2)
        total += (counted * (target - q)).sum(-1).double()
        count += counted.sum(-1).double()
    return torch.cat(logged, -1).double(), (total / count.clamp_min(1.0)).numpy()
