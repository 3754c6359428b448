"""Importance sampling and doubly robust values of one policy: shown beside the headline, never leading it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from rl_training.core.spaces import Spaces
from rl_training.core.streams import derive_seed
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.stored_rows import as_array
from rl_training.judging import checks
from rl_training.judging.density import (
    BehaviourDensity,
    checked_propensities,
    fit_density,
    kernel_log_density,
    unit_spaces,
)
from rl_training.judging.estimators import (
    clipped_log_ratios,
    resampled_doubly_robust,
    resampled_importance,
)
from rl_training.judging.fitting import Told
from rl_training.judging.judgement import Check, Interval
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.subjects import Subject
from rl_training.judging.values import FittedValues

RESAMPLES = 200
"""Bootstrap resamples of episodes behind an interval."""


@dataclass(frozen=True)
class Weighing:
    """What weighing the log needs of the behaviour, once for all policies."""

    log: JudgedLog
    spaces: Spaces
    unit_actions: FloatArray
    density: BehaviourDensity
    config: JudgeConfig

    def estimates(
        self, subject: Subject, actions: FloatArray, fitted: FittedValues, index: int
    ) -> tuple[dict[str, Interval], Check]:
        """IS, WIS, PDIS, WPDIS and weighted doubly robust, and how far the weights carry."""
        log_pi = subject.log_density(self.log.obs, self.unit_actions)
        note = f"how likely the logged actions were is {self.density.source}"
        if log_pi is None:
            own = np.clip(self.spaces.to_unit(actions), -1.0, 1.0)
            log_pi = kernel_log_density(self.unit_actions, own, self._bandwidth)
            note += "; a Gaussian kernel stands in for the density of a deterministic policy"
        split = self.log.per_episode
        ratios, clipped = clipped_log_ratios(
            split(log_pi), split(self.density.log_density), *self.config.log_ratio_range
        )
        note += f"; {clipped:.0%} of the ratios clipped"
        rewards = self._at_the_start(self.log.rewards)
        counts = self._counts(self.log.episodes)
        found = resampled_importance(rewards, ratios, counts=counts, gamma=self._gamma)
        robust = self._doubly_robust(rewards, ratios, fitted, index)
        if robust is not None:
            found["wdr"] = robust
        estimates = {name: self._interval(values, note) for name, values in found.items()}
        return estimates, checks.sample_size(ratios, self.log.episodes)

    @property
    def _gamma(self) -> float:
        return self.log.gamma if self.log.discounts is None else 1.0

    def _at_the_start(self, values: npt.ArrayLike) -> list[Float64Array]:
        """Per episode, as the estimators take them: where discounts differ by row, already discounted.

        Every estimator is a sum over rows of gamma^t times something of that row; the product of the row's
        own discounts takes the place of gamma^t if rewards and values are multiplied by it and gamma is 1.
        """
        discounted = self.log.discounted
        return self.log.per_episode(values if discounted is None else np.asarray(values) * discounted)

    def _counts(self, episodes: int) -> Float64Array:
        """All episodes once, then bootstrap resamples of them."""
        draws = np.random.default_rng(derive_seed(self.config.seed, "judge", "weighing"))
        resamples = draws.multinomial(episodes, np.full(episodes, 1.0 / episodes), RESAMPLES)
        return np.concatenate([np.ones((1, episodes)), resamples])

    def _interval(self, values: Float64Array, note: str) -> Interval:
        """The first number, and between which bounds those of the resamples lie."""
        known = values[np.isfinite(values)]
        tail = 50.0 * (1.0 - self.config.confidence)
        low, high = np.percentile(known, (tail, 100.0 - tail)) if len(known) else (np.nan, np.nan)
        return Interval(float(values[0]), float(low), float(high), note)

    @property
    def _bandwidth(self) -> Float64Array:
        given = self.config.kernel_bandwidth
        return self.density.bandwidth if given is None else np.full(self.spaces.action_dim, given)

    def _doubly_robust(
        self, rewards: list[Float64Array], ratios: list[Float64Array], fitted: FittedValues, index: int
    ) -> Float64Array | None:
        """Over the episodes that some member has not seen: values are always those of other episodes."""
        logged, own = (self._at_the_start(values[index]) for values in (fitted.logged, fitted.own))
        final = fitted.final[index]
        if self.log.discounts is not None and self.log.discounted is not None:
            final = final * (self.log.discounts * self.log.discounted)[self.log.ends]
        kept = [i for i, values in enumerate(own) if np.isfinite(values).all() and np.isfinite(final[i])]
        if not kept:
            return None
        # After a termination nothing follows, whatever the networks say.
        ended = self.log.dones[self.log.ends]
        return resampled_doubly_robust(
            *([values[i] for i in kept] for values in (rewards, ratios, logged, own)),
            counts=self._counts(len(kept)),
            gamma=self._gamma,
            final_values=np.where(ended, 0.0, final)[kept],
        )


def prepare_weighing(
    log: JudgedLog, data: TransitionDataset, spaces: Spaces | None, config: JudgeConfig, tell: Told
) -> Weighing:
    """The density of the logged actions: from the log where it holds one, else fitted."""
    bounds = unit_spaces(log, spaces)
    unit_actions = np.clip(bounds.to_unit(log.actions), -1.0, 1.0)
    fitted, bandwidth = fit_density(log, unit_actions, config, tell)
    column = data.store.columns.get("behavior_logprobs")
    if column is None:
        return Weighing(log, bounds, unit_actions, BehaviourDensity(fitted, bandwidth, "fitted"), config)
    logged = checked_propensities(as_array(column).astype(np.float64), bounds, data.info.source)
    return Weighing(log, bounds, unit_actions, BehaviourDensity(logged, bandwidth, "as logged"), config)
