"""What every cost of a policy is, and whether it keeps its limit: values as of a reward, in the limit's unit.

Per step: the discounted cost per discounted step, which is J (1 - gamma) where no episode ends by itself.
Per episode: the plain sum until the end. The steps that are left are then a further observation, so that the
networks know when nothing more can come.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.config.limits import Limit, parse_limits
from rl_training.core.errors import DataError
from rl_training.data.formulas import FEWEST_COSTLY, described_costs
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.reading import DataWarning
from rl_training.data.rows import as_array
from rl_training.judging import checks
from rl_training.judging.fit import FitCache, OnProgress, Rows, fit
from rl_training.judging.fqe import FQE, FittedValues, batch_of, fit_values, new_learner, stacked_actions
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog, Operator
from rl_training.judging.policies import PolicyActions
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import (
    Check,
    CostJudgement,
    LimitOutcome,
    LoggedCost,
    combined,
    interval,
    number,
)

CURVE_ROWS = 20_000
"""Rows by which it is learned what networks mean, at most."""


@dataclass(frozen=True)
class LoggedCosts:
    """The costs of a log: every row's, and what its episodes hold of them."""

    names: tuple[str, ...]
    limits: Mapping[str, Limit]
    rows: FloatArray
    """`[rows, costs]`"""
    totals: Float64Array
    """`[episodes, costs]`, with rows that only count for sums"""
    steps: Float64Array
    """of each episode, these rows counted"""

    @classmethod
    def of(cls, data: TransitionDataset, limits: Mapping[str, object]) -> LoggedCosts:
        """Those of the data; limits must be of them."""
        known = {each.name: each for each in parse_limits(limits)}
        for sentence in data.check_limits(tuple(known.values())):
            warnings.warn(sentence, DataWarning, stacklevel=3)
        if not data.cost_names:
            return cls((), {}, np.zeros((len(data), 0), np.float32), np.zeros((0, 0)), np.zeros(0))
        rows = as_array(data.store.whole("costs")).astype(np.float32)
        if not np.isfinite(rows).all():
            raise DataError(f"{data.info.source}: costs must be finite numbers to be judged")
        totals, steps = data.episode_costs()
        return cls(data.cost_names, known, rows, totals, steps.astype(np.float64))

    @property
    def told(self) -> tuple[LoggedCost, ...]:
        """What the log itself says of them."""
        found = described_costs(self.names, self.totals, self.steps, tuple(self.limits.values()))
        return tuple(LoggedCost(name, **facts) for name, facts in found.items())


@dataclass(frozen=True)
class CostRate:
    """What a cost is in a row, by observation and action: what a policy pays along a model's rollouts.

    A policy stays where it is for hundreds of steps: a network that is wrong there by half a hundredth of a
    threshold's step is wrong by half of a rare cost. So what networks say is translated into what rows of
    which they said so really cost, rows that they have not seen.
    """

    learner: FQE
    curves: Sequence[tuple[Float64Array, Float64Array]]
    """per network: what it says, and what that costs in the user's units, both rising"""

    @classmethod
    def of(cls, learner: FQE, log: JudgedLog) -> CostRate:
        rows = np.random.default_rng(0).permutation(len(log))[:CURVE_ROWS]
        at = torch.from_numpy(np.sort(rows))
        told = asked(learner, log.columns["obs"][at], log.columns["actions"][at])
        unseen = (learner.row_weights(log.columns["episodes"][at]) == 0).numpy()
        paid = log.rewards[at.numpy()].astype(np.float64)
        unseen |= ~unseen.any(axis=1, keepdims=True)  # a network that has seen all is asked of all
        return cls(learner, [rising(each[u], paid[u]) for each, u in zip(told.numpy(), unseen, strict=True)])

    def __call__(self, state: Tensor, actions: Tensor) -> Tensor:
        """Scaled `[worlds, n, width]` -> `[worlds, n]` in the user's units, a network per world."""
        worlds, count = state.shape[:2]
        members = asked(self.learner, state.flatten(0, 1), actions.flatten(0, 1))
        own = members.reshape(len(members), worlds, count).numpy()
        places = [world % len(members) for world in range(worlds)]
        paid = [np.interp(own[place, world], *self.curves[place]) for world, place in enumerate(places)]
        return torch.from_numpy(np.stack(paid))


@torch.no_grad()
def asked(learner: FQE, obs: Tensor, actions: Tensor) -> Tensor:
    """`[members, n]`"""
    found: Tensor = learner.critic(obs, actions).double()
    return found


def rising(told: Float64Array, paid: Float64Array) -> tuple[Float64Array, Float64Array]:
    """The rising curve through what was told and what was paid that is nearest by least squares."""
    from scipy.optimize import isotonic_regression

    order = np.argsort(told, kind="stable")
    fitted = isotonic_regression(paid[order]).x
    return told[order], np.asarray(fitted, dtype=np.float64)


@dataclass(frozen=True)
class CostValues:
    """One cost as the value networks see it."""

    name: str
    limit: Limit | None
    log: JudgedLog
    """with the cost in the place of the reward"""
    fitted: FittedValues
    steps: FittedValues | None
    """discounted steps, where that is not 1 / (1 - gamma) for everybody"""
    found: Float64Array
    """of each logged episode, what is compared with the limit"""
    further: float
    """sums are larger by this: rows without a successor count for them"""
    falsification: Check
    rate: CostRate | None = None

    @property
    def per(self) -> Literal["step", "episode"]:
        return "step" if self.limit is None else self.limit.per

    def of_members(self, values: Float64Array, steps: Float64Array | None) -> Float64Array:
        """Values of networks in the limit's unit."""
        if self.per == "episode":
            return values * self.further
        return values / (self.log.horizon if steps is None else np.maximum(steps, 1.0))

    def members(self, index: int) -> Float64Array:
        return self.of_members(
            self.fitted.values[index], None if self.steps is None else self.steps.values[index]
        )

    def taken_over(self, operator: int, index: int) -> Float64Array:
        """The same of an operator, from where it took over."""
        steps = None if self.steps is None else self.steps.taken_over[operator][index]
        return self.of_members(self.fitted.taken_over[operator][index], steps)

    def error(self, index: int) -> float:
        """What all networks share of errors."""
        own = self.fitted.level_error(index, self.log.horizon)
        if self.per == "episode":
            return own * self.further
        if self.steps is None:
            return own / self.log.horizon
        lived = max(float(self.steps.values[index].mean()), 1.0)
        share = abs(float(self.members(index).mean()))
        return (own + share * self.steps.level_error(index, self.log.horizon)) / lived

    @cached_property
    def least(self) -> float:
        return float(self.found.min())

    def not_seen(self, confidence: float) -> float:
        """What a log with few costly episodes cannot exclude: that it happens to show too few of them.

        Of n episodes, none of what comes in a share p of them shows with the odds (1 - p)^n (the rule of
        three: p = 3 / n for 5 %).
        """
        costly = self.found[self.found > self.least]
        if len(costly) >= FEWEST_COSTLY:
            return self.least
        share = min(1.0, -math.log((1.0 - confidence) / 2.0) / len(self.found))
        return self.least + share * float((costly - self.least).mean()) if len(costly) else math.inf

    def judge(
        self,
        index: int,
        config: JudgeConfig,
        *,
        members: Float64Array | None = None,
        worlds: Float64Array | None = None,
        doubt: str = "",
    ) -> CostJudgement:
        """Value, interval and outcome; `doubt` says why the policy's numbers cannot be relied on.

        Outcomes are as careful as verdicts: an interval that spans both methods, and never narrower at its
        upper end than what a log of so few episodes cannot exclude.
        """
        own = interval(
            self.members(index) if members is None else members, config.confidence, self.error(index)
        )
        estimates = {"fqe": own}
        if worlds is not None and np.isfinite(worlds).all():
            estimates["model"] = interval(worlds, config.confidence, of_mean=True)
            own = combined(own, estimates["model"], together=config.headline == "both")
        floor = 0.0 if self.log.rewards.min() >= 0.0 else -math.inf  # nobody pays less than nothing
        value, low = max(own.value, floor), math.nan if own.low is None else max(own.low, floor)
        high = math.nan if own.high is None else max(own.high, floor, self.not_seen(config.confidence))
        asked = {
            "falsification": self.falsification,
            "convergence": checks.convergence(self.log, self.fitted, index, config),
        }
        found = CostJudgement(self.name, self.per, value, low, high, estimates=estimates, checks=asked)
        if self.limit is None:
            return found
        outcome, why = self.outcome(found, doubt)
        bound = self.limit.bound
        return replace(found, limit=bound, outcome=outcome, sentence=self.sentence(found, outcome, why))

    def outcome(self, found: CostJudgement, doubt: str) -> tuple[LimitOutcome, str]:
        """And why, where it cannot be told."""
        assert self.limit is not None
        failed = [check.reason for check in found.checks.values() if check.outcome == "refused"]
        if math.isinf(found.high):
            return "cannot tell", (
                f"no episode of the log differs from the others in {self.name}, so that nothing is known of "
                "what leads to it (a lower threshold would)"
            )
        if doubt:
            return "cannot tell", doubt
        if failed:
            return "cannot tell", failed[0][0].lower() + failed[0][1:].rstrip(".")
        if found.high < self.limit.bound:
            return "keeps", ""
        if found.low > self.limit.bound:
            return "breaks", ""
        return "cannot tell", ""

    def sentence(self, found: CostJudgement, outcome: LimitOutcome, why: str) -> str:
        """The outcome as a person would say it."""
        told = {
            "keeps": f"Keeps the limit of {self.name}, {self.limit}",
            "breaks": f"Breaks the limit of {self.name}, {self.limit}",
            "cannot tell": f"Cannot tell whether it keeps the limit of {self.name}, {self.limit}",
        }[outcome]
        reason = f"; {why}" if why else ""
        return f"{told}: {number(found.value)} [{number(found.low)}, {number(found.high)}]{reason}."


def fit_costs(
    costs: LoggedCosts,
    log: JudgedLog,
    policies: Sequence[PolicyActions],
    config: JudgeConfig,
    on_progress: OnProgress,
    cache: FitCache | None,
    operators: Sequence[Operator],
) -> list[CostValues]:
    """Value networks for every cost, as those of the reward are: same sizes, resamples and checks."""

    def values(of: JudgedLog, name: str) -> FittedValues:
        known = operators if of.gamma == log.gamma else with_last_rows(operators, log)
        return fit_values(of, policies, config, on_progress, cache, known, name=name)

    steps = None
    whole = until_the_end(log)
    per_step = [name for name in costs.names if name not in costs.limits or costs.limits[name].per == "step"]
    if per_step and (log.dones.any() or log.discounts is not None):
        steps = values(replace(log, rewards=np.ones_like(log.rewards)), "steps")
    fitted = []
    for place, name in enumerate(costs.names):
        limit = costs.limits.get(name)
        by_episode = limit is not None and limit.per == "episode"
        own = replace(whole if by_episode else log, rewards=costs.rows[:, place])
        found = values(own, f"cost_{place + 1}")
        totals = costs.totals[:, place]
        fitted.append(
            CostValues(
                name,
                limit,
                own,
                found,
                None if by_episode else steps,
                totals if by_episode else totals / costs.steps,
                float(costs.steps.sum() / log.lengths.sum()),
                checks.falsification(own, found, config, of_cost=True),
                fit_rate(log, costs.rows[:, place], f"cost_{place + 1}_of_rows", config, on_progress, cache)
                if config.model_rollouts
                else None,
            )
        )
    return fitted


def until_the_end(log: JudgedLog) -> JudgedLog:
    """The log, undiscounted, with the steps that are left of an episode as a further observation.

    An episode that the record cut off is as long as it was. One that ended by itself could have been as long
    as the longest.
    """
    left = (np.repeat(longest_lengths(log), log.lengths) - log.steps)[:, None].astype(np.float32)
    obs, following = np.hstack([log.obs, left]), np.hstack([log.next_obs, left - 1.0])
    return replace(log, obs=obs, next_obs=following, dones=log.ends, gamma=1.0, discounts=None)


def with_last_rows(operators: Sequence[Operator], log: JudgedLog) -> list[Operator]:
    """Operators with the rows in which they acted when an episode ended: nothing comes after them here."""
    found = []
    for each in operators:
        goes_on, begins = np.append(False, each.rows[:-1]) & (log.steps > 0), np.zeros(len(log), np.bool_)
        begins[each.starts] = True
        found.append(replace(each, rows=each.rows | (log.ends & (goes_on | begins))))
    return found


def longest_lengths(log: JudgedLog) -> Float64Array:
    """How long each episode may have been."""
    return np.where(log.dones[log.ends], log.lengths.max(), log.lengths).astype(np.float64)


def fit_rate(
    log: JudgedLog,
    cost: FloatArray,
    name: str,
    config: JudgeConfig,
    on_progress: OnProgress,
    cache: FitCache | None,
) -> CostRate:
    """The cost of a row as a value that ends with it: least squares, by the same networks."""
    every = np.ones(len(log), dtype=np.bool_)
    alone = replace(log, rewards=cost, dones=every, ends=every, gamma=1.0, discounts=None)
    learner = new_learner(alone, config)
    logged = stacked_actions(log, [log.actions[:, None]], log.actions, by_log=0)[0]
    usable = torch.ones(len(log))
    fit(
        learner,
        Rows(
            lambda rows: {
                key: value[0] for key, value in batch_of(alone, logged[None], usable[None], rows).items()
            },
            len(log),
        ),
        name=name,
        updates=config.model_updates,
        config=config,
        networks=config.members,
        on_progress=on_progress,
        cache=cache,
    )
    return CostRate.of(learner, alone)
