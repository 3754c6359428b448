"""The checks that can say no: each asks one question and answers in one sentence.

First what they measure with: how near the log is to what a policy does, and the critic it was trained with.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.recipe import get_recipe
from rl_training.config.run import TrainConfig, parse_config
from rl_training.core.checkpoints import load_run_state
from rl_training.core.streams import derive_seed
from rl_training.core.types import Facts
from rl_training.data.episodes import BoolArray, IntArray, episode_lengths
from rl_training.judging.estimators import effective_sample_sizes
from rl_training.judging.fqe import ENOUGH, FittedValues, updates_to_settle
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import Check, Interval, Outcome
from rl_training.models.models import CriticModel
from rl_training.policies.policy import BESIDE_THE_LEARNER, Policy, policy_of_state

REFERENCE_SHARE = 0.8
REFERENCE_ROWS = 20_000
QUERY_ROWS = 2000
LIMIT_PERCENTILE = 99.0
CALIBRATION_BINS = 10
CHANCE_LIMIT = 0.05
"""Odds of chance, above which values are not said to follow the returns."""
COINS = 999
PLAIN_CORRELATION = 0.5
"""Values that follow the returns so closely need no allowance for noise.

What comes after a cut-off end is in both. Without it, only steps from row to row are compared, and values
of a log of several operators, each of whom goes on as it began, do not add up there as those of one would.
"""
SMALLEST_CORRELATION = 0.25
"""Values that explain less of the returns than its square say too little to be tested."""
SURE_ERRORS = 1.645
"""Standard errors up to which a number may lie higher than it was found, 19 times in 20."""
FEW_EPISODES = 10.0
"""Weights worth fewer episodes than this are no basis for an estimate."""

AROUND = 100
"""Logged states around a state, at most, among which a level must have been taken."""

_CHUNK = 256
_CRITIC_CHUNK = 16_384

Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class Coverage:
    """Rows of some episodes to be near to, rows of the others to compare with."""

    log: JudgedLog
    reference: Tensor
    rows: IntArray
    """held-out rows at whose states policies are asked"""
    neighbours: int
    levels: tuple[int, ...] = ()
    """numbers of each part of an action, where there are choices among them"""

    @classmethod
    def of(cls, log: JudgedLog, neighbours: int, seed: int, levels: tuple[int, ...] = ()) -> Coverage:
        draws = np.random.default_rng(derive_seed(seed, "judge", "coverage"))
        order = draws.permutation(log.episodes)
        kept = max(1, min(log.episodes - 1, round(REFERENCE_SHARE * log.episodes)))
        is_reference = np.isin(log.numbers, order[:kept]) if log.episodes > 1 else np.arange(len(log)) % 5 > 0
        rows = np.flatnonzero(is_reference)
        near = draws.choice(rows, min(len(rows), REFERENCE_ROWS), replace=False)
        others = np.flatnonzero(~is_reference)
        queries = np.sort(draws.choice(others, min(len(others), QUERY_ROWS), replace=False))
        reference = _points(log, log.obs[near], log.actions[near])
        return cls(log, reference, queries, min(neighbours, len(near)), levels)

    @cached_property
    def logged(self) -> Float64Array:
        """Distances of those rows as they were logged."""
        return self.distances(self.log.obs[self.rows], self.log.actions[self.rows])

    @property
    def limit(self) -> float:
        """What all but one in a hundred of the log's own rows stay below."""
        return float(np.percentile(self.logged[np.isfinite(self.logged)], LIMIT_PERCENTILE))

    def distances(self, obs: FloatArray, actions: FloatArray) -> Float64Array:
        """Mean distance to the nearest reference rows; infinite where none around took one of the levels."""
        points = _points(self.log, obs, actions)
        parts = [
            torch.cdist(points[start : start + _CHUNK], self.reference)
            .topk(self.neighbours, dim=-1, largest=False)
            .values.mean(-1)
            for start in range(0, len(points), _CHUNK)
        ]
        found: Float64Array = torch.cat(parts).double().numpy()
        return np.where(self.levels_taken(points), found, np.inf) if self.levels else found

    def levels_taken(self, points: Tensor) -> BoolArray:
        """Whether each level was taken, in a choice after the other, in one of the states around."""
        size = self.log.obs.shape[1]
        around = min(len(self.reference), max(self.neighbours, min(AROUND, len(self.reference) // 100)))
        ends = np.cumsum((size, *self.levels)).tolist()
        blocks = [slice(a, b) for a, b in pairwise(ends) if b - a > 1]
        parts = []
        for start in range(0, len(points), _CHUNK):
            rows = points[start : start + _CHUNK]
            near = torch.cdist(rows[:, :size], self.reference[:, :size]).topk(around, largest=False).indices
            taken = [
                (self.reference[:, block].argmax(-1)[near] == rows[:, block].argmax(-1, keepdim=True)).any(-1)
                for block in blocks
            ]
            parts.append(torch.stack(taken).all(0))
        every: BoolArray = torch.cat(parts).numpy()
        return every

    def share_outside(self, distances: Float64Array) -> float:
        return float((distances > self.limit).mean())


def _points(log: JudgedLog, obs: FloatArray, actions: FloatArray) -> Tensor:
    both = np.concatenate([log.obs_scale.apply(obs), log.action_scale.apply(actions)], axis=1)
    return torch.from_numpy(both)


@dataclass(frozen=True)
class TrainedCritic:
    """A critic as training left it, asked in the user's units."""

    model: CriticModel
    policy: Policy
    gamma: float
    reward_scale: float
    by_time: bool = False

    def discounts_like(self, log: JudgedLog) -> bool:
        """Whether its values count the future as a judgement of this log does."""
        return self.gamma == log.gamma and self.by_time == (log.discounts is not None)

    @torch.no_grad()
    def values(self, obs: FloatArray, actions: FloatArray) -> Float64Array:
        """Q of every row, the mean over the critics."""
        unit = np.clip(self.policy.spaces.as_shares.to_unit(actions), -1.0, 1.0)
        parts = []
        for start in range(0, len(obs), _CRITIC_CHUNK):
            rows = slice(start, start + _CRITIC_CHUNK)
            prepared = self.policy.prepared(torch.from_numpy(obs[rows]).to(self.policy.dtype)).float()
            found = self.model.q_values(prepared, torch.from_numpy(unit[rows]).float())
            each = found.mean(-1) if isinstance(found, torch.Tensor) else torch.stack(found).mean(0)
            parts.append(each.double())
        values: Float64Array = torch.cat(parts).numpy() / self.reward_scale
        return values


def trained_critic(path: str | Path) -> TrainedCritic | None:
    """The critic of a run or checkpoint; none where there is none whose units can be told."""
    state = load_run_state(path, skip=BESIDE_THE_LEARNER)
    return critic_of_state(state, parse_config(state["config"]), policy_of_state(state, source=path))


def critic_of_state(state: Facts, config: TrainConfig, policy: Policy) -> TrainedCritic | None:
    """The same of a checkpoint that is open already."""
    recipe, settings = get_recipe(config.algo), config.run_config().to_dict()
    clipped = settings.get("reward_clip") is not None
    changed = clipped or settings.get("reward_shift") or settings.get("normalize_reward")
    if changed or not issubclass(recipe.model, CriticModel):
        return None
    model = recipe.model.from_config(config.run_config(), policy.asked_spaces, None)
    saved = state["learner"]["tensors"]
    model.load_state_dict({name: saved[f"model.{name}"] for name in model.state_dict()})
    scale, by_time = float(settings.get("reward_scale", 1.0)), bool(settings.get("discount_by_time"))
    return TrainedCritic(model, policy, float(settings["gamma"]), scale, by_time)


def enough_episodes(log: JudgedLog, config: JudgeConfig) -> Check:
    numbers = {"episodes": float(log.episodes)}
    if log.episodes >= config.min_episodes:
        return Check("passed", f"The log has {log.episodes} episodes.", numbers)
    has = f"has only {log.episodes} episodes; log more of them"
    if log.episodes == 1:
        has = "is one single episode; if it holds several, mark where each of them ends"
    reason = f"The log {has}: {config.min_episodes} are the least that can tell (min_episodes)."
    return Check("refused", reason, numbers)


def held_out_returns(log: JudgedLog, values: Float64Array) -> Float64Array:
    """Returns-to-go of the log, where a cut-off episode goes on with the value of its last row.

    Where nobody can say that value (every network has seen the episode), its rows have no return.
    """
    earned = log.rewards.astype(np.float64)
    cut = log.ends & ~log.dones
    earned[cut] = np.nan_to_num(values[cut])  # a NaN would spread to the episodes before it
    returns = log.returns(earned)
    unknown = (cut & np.isnan(values))[log.ends]
    returns[np.repeat(unknown, episode_lengths(log.ends))] = np.nan
    return returns


def falsification(
    log: JudgedLog, fitted: FittedValues, config: JudgeConfig, *, of_cost: bool = False
) -> Check:
    """Does the procedure give the behaviour, whose returns are known, its right values?

    Means alone would pass shuffled rewards and blank observations, so values have to follow the returns too.
    Plainly; or, where returns are mostly noise, as closely as right values would, and more than by chance.
    What a cost comes to is mostly a matter of few episodes: its values must not be surely out of proportion.
    """
    from scipy.stats import spearmanr

    values = fitted.logged[-1]
    returns = held_out_returns(log, values)
    known = np.isfinite(values) & np.isfinite(returns) & ~(log.ends & ~log.dones)
    if known.sum() < 3 or np.ptp(returns[known]) == 0.0 or np.ptp(values[known]) == 0.0:
        return Check("refused", "The log holds nothing to test values with: its returns are all the same.")
    error = float((values[known] - returns[known]).mean() / returns[known].std())
    promised, earned = _until_the_end(log, values, returns)
    found = followed(promised[known], earned[known], log.numbers[known], config.seed)
    # Where most returns are nearly equal their ranks are noise, and the line through the others is not.
    plainly = max(
        float(spearmanr(values[known], returns[known]).statistic),
        float(np.corrcoef(values[known], returns[known])[0, 1]),
    )
    numbers = {"error": error, "plain_correlation": plainly, **found}
    correlation, reachable = found["correlation"], found["reachable_correlation"]
    if abs(error) > config.falsification_error_limit:
        reason = (
            f"Values of the logged behaviour miss its own returns by {abs(error):.0%} of their spread, "
            "so values of a policy cannot be trusted either."
        )
        return Check("refused", reason, numbers)
    if plainly >= PLAIN_CORRELATION:
        return Check("passed", f"Values of the behaviour follow held-out returns ({plainly:.2f}).", numbers)
    told = f"correlation {correlation:.2f}, where right values would reach {reachable:.2f}"
    wrong = correlation < max(SMALLEST_CORRELATION, config.falsification_correlation_limit * reachable)
    if of_cost:
        numbers["proportion"], error = proportion(promised[known], earned[known], log.numbers[known])
        most = numbers["proportion_at_most"] = numbers["proportion"] + SURE_ERRORS * error
        told = f"{numbers['proportion']:.2f} of what they promise comes, at most {most:.2f}"
        wrong = most < config.falsification_correlation_limit
    if found["chance"] > CHANCE_LIMIT or wrong:
        reason = (
            f"Values hardly follow the returns of held-out episodes ({told}): the observations may not hold "
            "what the rewards depend on."
        )
        return Check("refused", reason, numbers)
    return Check("passed", f"Values of the behaviour agree with held-out returns ({told}).", numbers)


def _until_the_end(
    log: JudgedLog, values: Float64Array, returns: Float64Array
) -> tuple[Float64Array, Float64Array]:
    """What values promise from each row to the end of its episode, and what was earned, around the level.

    The value of a cut-off episode's last row is part of both its value and its return: it is taken out, or
    values would agree with themselves. So is the level that all rewards have in common, which would agree
    by the number of rows that are left alone.
    """
    scale, cut = log.reward_scale, log.ends & ~log.dones
    promised = values - scale.level
    promised[~cut] -= log.returns(np.where(cut, np.nan_to_num(promised), 0.0))[~cut]
    earned = scale.rewards(log.rewards, log.discounts).astype(np.float64) * scale.spread
    kept = log.gamma if log.discounts is None else log.discounts
    earned -= np.where(log.dones, kept * scale.level, 0.0)  # nothing follows, where the level would
    earned[cut] = 0.0
    return promised, np.where(np.isfinite(returns), log.returns(earned), np.nan)


def followed(promised: Float64Array, earned: Float64Array, episodes: IntArray, seed: int) -> dict[str, float]:
    """How closely one follows the other; how closely right values would; the odds that chance does as well.

    If what is promised were right, what was earned would be that plus noise of its own, as large as what is
    left between the two: the correlation is then as `reachable_correlation` says. Chance: episodes are
    the independent unit, so the products of each are given the sign of a coin.
    """
    left, right = promised - promised.mean(), earned - earned.mean()
    spread, noise = float(left.var()), float((right - left).var())
    correlation = float((left * right).mean() / max(left.std() * right.std(), 1e-300))
    sums = np.bincount(episodes, weights=left * right)
    draws = np.random.default_rng(derive_seed(seed, "judge", "falsification"))
    by_chance = (2 * draws.integers(0, 2, (COINS, len(sums))) - 1) @ sums
    chance = float((1 + (by_chance >= sums.sum()).sum()) / (COINS + 1))
    reachable = math.sqrt(spread / max(spread + noise, 1e-300))
    return {"correlation": correlation, "reachable_correlation": reachable, "chance": chance}


def proportion(promised: Float64Array, earned: Float64Array, episodes: IntArray) -> tuple[float, float]:
    """By how much more is earned where more is promised by one, and the standard error of that, from episode
    to episode: 1 if values are right, whatever noise there is, less the further they exaggerate."""
    left, right = promised - promised.mean(), earned - earned.mean()
    size = max(float((left**2).sum()), 1e-300)
    slope = float((left * right).sum()) / size
    beside = np.bincount(episodes, weights=left * (right - slope * left))
    return slope, float(np.sqrt((beside**2).sum())) / size


def calibration(log: JudgedLog, fitted: FittedValues) -> Points:
    """Held-out values of the behaviour beside its returns."""
    values = fitted.logged[-1]
    return in_parts(values, held_out_returns(log, values))


def in_parts(values: Float64Array, returns: Float64Array) -> Points:
    """Mean value and mean return of rows sorted by value into equal parts."""
    known = np.flatnonzero(np.isfinite(values) & np.isfinite(returns))
    ordered = known[np.argsort(values[known], kind="stable")]
    parts = [part for part in np.array_split(ordered, CALIBRATION_BINS) if len(part)]
    return tuple((float(values[part].mean()), float(returns[part].mean())) for part in parts)


def critic_optimism(
    log: JudgedLog, fitted: FittedValues, index: int, trained: Float64Array, config: JudgeConfig
) -> tuple[Check, Points]:
    """The values of the logged actions that training left, next to what the log earned and the judge says.

    A better policy earns more than the log did: only what is above both is called optimism.
    """
    returns, judged = held_out_returns(log, fitted.logged[-1]), fitted.logged[index]
    known = np.isfinite(returns) & np.isfinite(judged)
    spread = log.reward_scale.spread
    above = {
        "above_returns": float((trained - returns)[known].mean()) / spread,
        "above_judged": float((trained - judged)[known].mean()) / spread,
    }
    points = in_parts(trained, returns)
    if min(above.values()) > config.falsification_error_limit:
        reason = (
            f"The critic it was trained with promises {above['above_returns']:.1f} spreads of returns more "
            "than was earned: do not go by its own values."
        )
        return Check("warned", reason, above), points
    return Check("passed", "The critic it was trained with does not promise too much.", above), points


def convergence(log: JudgedLog, fitted: FittedValues, index: int, config: JudgeConfig) -> Check:
    """Have the values settled? An unsettled training has narrow intervals, so they cannot tell.

    What is left of the drift is part of the interval; beyond a limit it is not believed at all.
    """
    spread = log.reward_scale.spread
    size = max(spread, abs(float(fitted.values[index].mean() - fitted.values[-1].mean())))
    numbers = {
        "progress": fitted.progress,
        "drift": abs(fitted.drift(index)) / size,
        "level_error": fitted.level_error(index, log.horizon) / spread,
        "member_std": float(fitted.values[index].std(ddof=1)) / spread,
    }
    if not np.isfinite(fitted.values[index]).all():
        return Check("refused", "The values grew without bounds.", numbers)
    if fitted.progress < 0.99 * ENOUGH:
        needed = updates_to_settle(config, log)
        reason = f"{fitted.updates:,} updates are too few for this discount; {needed:,} are needed."
        return Check("refused", reason, numbers)
    if numbers["drift"] > config.drift_limit:
        reason = f"The value still moved by {numbers['drift']:.0%} when training ended."
        return Check("refused", reason, numbers)
    return Check("passed", "The value has settled.", numbers)


def coverage(share: float, limit: float, *, reached: bool, decides: bool) -> Check:
    """How much lies outside the log; more than the limit refuses where that `decides`, and else warns."""
    where = "in states that it would reach" if reached else "in logged states"
    numbers = {"share_outside": share, "limit": limit}
    words = f"further from anything logged than {LIMIT_PERCENTILE:.0f} % of the log itself"
    told = f"{share:.1%} of what the policy does {where} is {words}"
    if share > limit and decides:
        return Check("refused", f"{told}; at most {limit:.0%} can be judged.", numbers)
    if share > limit:
        return Check("warned", f"{told}.", numbers)
    return Check("passed", f"{told}.", numbers)


def second_opinion(
    own: Interval, model: Interval, behaviour: float, spread: float, config: JudgeConfig
) -> Check:
    """Two different methods should not say opposite things, nor things that are far apart.

    Far is measured in spreads of returns; or, where both say the same of a policy, in halves of the
    difference to the behaviour that both grant it: returns of short episodes spread by less than values do.
    """
    apart = [each.value - behaviour for each in (own, model)]
    granted = min(map(abs, apart)) / 2.0 if apart[0] * apart[1] > 0.0 else 0.0
    gap = abs(own.value - model.value) / max(spread, granted)
    numbers = {"gap": gap, "model_value": model.value}
    sides = (own.value - behaviour) * (model.value - behaviour)
    overlap = _overlap(own, model)
    if sides < 0.0 and not overlap:
        reason = (
            f"Two methods disagree: {own.value:.4g} by fitted values, {model.value:.4g} by a model of the "
            f"dynamics, with the behaviour's {behaviour:.4g} between them."
        )
        return Check("refused", reason, numbers)
    clearly_worse = all(each.high is not None and each.high < behaviour for each in (own, model))
    if gap > config.disagreement_limit and not overlap and not clearly_worse:
        reason = (
            f"Two methods are far apart: {own.value:.4g} by fitted values, {model.value:.4g} by a model of "
            f"the dynamics, {gap:.1f} times what they may."
        )
        return Check("refused", reason, numbers)
    outcome: Outcome = "passed" if overlap or gap < config.falsification_error_limit else "warned"
    agree = "agrees" if outcome == "passed" else "differs in size, not in direction"
    return Check(outcome, f"A model of the dynamics {agree} ({model.value:.4g}).", numbers)


def sample_size(log_ratios: Sequence[Float64Array], episodes: int) -> Check:
    """How far the weights of importance sampling carry; says nothing about the headline value."""
    sizes = effective_sample_sizes(log_ratios)
    short = np.flatnonzero(sizes < min(FEW_EPISODES, episodes))
    numbers = {"effective_sample_size": float(sizes[-1])}
    if not len(short):
        return Check("passed", f"The weights are worth {sizes[-1]:.0f} of {episodes} episodes.", numbers)
    numbers["unusable_after"] = float(short[0])
    reason = f"Importance sampling is unusable after step {int(short[0])} (weights worth < 10 episodes)."
    return Check("warned", reason, numbers)


def _overlap(first: Interval, second: Interval) -> bool:
    if first.low is None or first.high is None or second.low is None or second.high is None:
        return False
    return first.low <= second.high and second.low <= first.high
