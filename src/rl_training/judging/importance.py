"""Importance sampling and doubly robust values of one policy, and how likely the logged actions were.

Shown beside the headline, never leading it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.algorithms.learner import Batch, MetricTensors, Noise
from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.core.streams import derive_seed, torch_generator
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.rows import as_array
from rl_training.judging import checks
from rl_training.judging.estimators import (
    clipped_log_ratios,
    resampled_doubly_robust,
    resampled_importance,
)
from rl_training.judging.fit import FittedLearner, OnProgress, Rows, fit
from rl_training.judging.fqe import FittedValues
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog
from rl_training.judging.policies import JudgedPolicy
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import Check, Interval
from rl_training.models.actors import gaussian_log_prob
from rl_training.models.choices import mixed_log_prob, mixed_values
from rl_training.models.dynamics import gaussian_outputs
from rl_training.models.models import PolicyModel
from rl_training.models.networks import MLP

HELD_OUT_SHARE = 0.2
SMALLEST_BANDWIDTH = 0.02
RESAMPLES = 200
"""Bootstrap resamples of episodes behind an interval."""


class DensityModel(PolicyModel):
    """N(tanh(m(s)), std(s)) in [-1, 1] units: actions on a bound are as good as any; of choices, shares."""

    net: MLP

    def build(self, generator: torch.Generator | None) -> None:
        self.net = MLP(self.obs_dim, 2 * self.action_dim, self.config.plan("critic"), generator=generator)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_std = gaussian_outputs(self.net(obs))
        return mixed_values(mean, self.spaces.levels) if self.spaces.choices else mean.tanh(), log_std

    def log_prob(self, obs: Tensor, actions: Tensor) -> Tensor:
        mean, log_std = self(obs)
        if not self.spaces.choices:
            return gaussian_log_prob(actions, mean, log_std)
        return mixed_log_prob(actions, mean, log_std, self.spaces.levels)


class Density(FittedLearner):
    """Maximum likelihood of the logged actions."""

    model: DensityModel
    takes_actions = ("numbers", "choices", "many choices", "mixtures")

    def setup(self) -> None:
        self.net = self.model
        self.add_optimizer("density", self.model.parameters(), "actor")

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        loss = -self.net.log_prob(batch["obs"], batch["actions"]).mean(-1)
        self.minimize("density", loss)
        return {"density_loss": loss.detach()}


def unit_spaces(log: JudgedLog, spaces: Spaces | None) -> Spaces:
    """The bounds that [-1, 1] stands for: the stated ones, else the range of the logged actions."""
    if spaces is not None:
        return spaces.as_shares
    low, high = log.actions.min(axis=0), log.actions.max(axis=0)
    high = np.where(high > low, high, low + 1.0)
    return Spaces(log.obs.shape[1], tuple(low.tolist()), tuple(high.tolist()))


def fit_density(
    log: JudgedLog,
    unit_actions: FloatArray,
    config: JudgeConfig,
    on_progress: OnProgress,
    parts: Spaces | None = None,
) -> tuple[Float64Array, Float64Array]:
    """Fit on four fifths of the episodes, keep the weights that explain the others best.

    Returns the log-density of every row and the residual std per action.
    """
    draws = np.random.default_rng(derive_seed(config.seed, "judge", "density"))
    held_out = np.isin(log.numbers, draws.permutation(log.episodes)[: round(HELD_OUT_SHARE * log.episodes)])
    rows, unseen = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    unseen = draws.choice(unseen, min(len(unseen), 10_000), replace=False) if len(unseen) else rows
    columns = {**log.columns, "actions": torch.from_numpy(unit_actions)}
    learner = Density(
        DensityModel(
            log.obs.shape[1],
            log.actions.shape[1],
            spaces=parts,
            hidden_sizes=config.hidden_sizes,
            generator=torch_generator(config.seed, "judge", "density network"),
        ),
        learning_rate=config.learning_rate,
    )
    best: tuple[float, dict[str, Tensor]] = (np.inf, {})

    @torch.no_grad()
    def keep_the_best(done: int) -> None:
        nonlocal best
        surprise = float(-learner.net.log_prob(columns["obs"][unseen], columns["actions"][unseen]).mean())
        if surprise < best[0]:
            best = surprise, {name: value.clone() for name, value in learner.model.state_dict().items()}

    kept = torch.from_numpy(rows)
    fit(
        learner,
        Rows(lambda drawn: {name: values[kept[drawn]] for name, values in columns.items()}, len(rows)),
        name="density",
        updates=config.density_updates,
        config=config,
        on_progress=on_progress,
        observe=keep_the_best,
    )
    learner.model.load_state_dict(best[1])
    with torch.no_grad():
        mean, _ = learner.net(columns["obs"])
        log_density = learner.net.log_prob(columns["obs"], columns["actions"]).double().numpy()
        residual = (columns["actions"] - mean).double().std(dim=0).numpy()
    return log_density, np.maximum(residual, SMALLEST_BANDWIDTH)


def checked_propensities(
    values: Float64Array, spaces: Spaces, source: str, parts: Spaces | None = None
) -> Float64Array:
    """Logged log-densities, from the user's action units to [-1, 1]; levels have no units."""
    if not np.isfinite(values).all():
        raise DataError(f"{source}: behavior_logprobs must be finite log-densities, found NaN or infinity")
    of_boxes = np.ones(spaces.action_dim, dtype=bool) if parts is None else parts.of_boxes
    if len(values) > 1 and np.ptp(values) == 0.0 and of_boxes.any():
        raise DataError(
            f"{source}: behavior_logprobs are all {values[0]:g}, which no density of continuous actions is; "
            "leave the column out and a density is fitted"
        )
    half_widths = (np.array(spaces.action_high) - np.array(spaces.action_low)) / 2.0
    converted: Float64Array = values + np.log(half_widths[of_boxes]).sum()
    return converted


def kernel_log_density(
    unit_actions: FloatArray, own: FloatArray, bandwidth: Float64Array, parts: Spaces | None = None
) -> Float64Array:
    """log of a Gaussian kernel around a deterministic policy's actions; of a choice, 0 or minus infinity."""
    spread = torch.from_numpy(np.log(bandwidth))
    actions, centers = (torch.from_numpy(each).double() for each in (unit_actions, own))
    if parts is None:
        density: Float64Array = gaussian_log_prob(actions, centers, spread).numpy()
        return density
    numbers = torch.from_numpy(parts.of_boxes)
    same = ((actions - centers).abs() < 0.5)[:, ~numbers].all(-1)
    density = gaussian_log_prob(actions[:, numbers], centers[:, numbers], spread[numbers]).numpy()
    return np.where(same.numpy(), density, -np.inf)


@dataclass(frozen=True)
class ImportanceSampling:
    """What weighting the log needs of the behaviour, once for all policies."""

    log: JudgedLog
    spaces: Spaces
    unit_actions: FloatArray
    log_density: Float64Array
    """log mu(a|s) of every logged row in [-1, 1] units"""
    bandwidth: Float64Array
    """std of what the density's mean leaves unexplained, per action"""
    source: str
    """where the density is from, in words"""
    config: JudgeConfig
    parts: Spaces | None = None
    """what the actions are, where there are choices among them"""

    def estimates(
        self, policy: JudgedPolicy, actions: FloatArray, fitted: FittedValues, index: int
    ) -> tuple[dict[str, Interval], Check]:
        """IS, WIS, PDIS, WPDIS and weighted doubly robust, and how far the weights carry."""
        log_pi = policy.log_density(self.log.obs, self.unit_actions)
        note = f"how likely the logged actions were is {self.source}"
        if log_pi is None:
            own = np.clip(self.spaces.to_unit(actions), -1.0, 1.0)
            log_pi = kernel_log_density(self.unit_actions, own, self._bandwidth, self.parts)
            if self.parts is None or self.parts.of_boxes.any():
                note += "; a Gaussian kernel stands in for the density of a deterministic policy"
        split = self.log.per_episode
        ratios, clipped = clipped_log_ratios(
            split(log_pi), split(self.log_density), *self.config.log_ratio_range
        )
        note += f"; {clipped:.0%} of the ratios clipped"
        rewards = self._at_the_start(self.log.rewards)
        counts = self._counts(self.log.episodes)
        found = resampled_importance(rewards, ratios, counts=counts, gamma=self._gamma)
        if (robust := self._doubly_robust(rewards, ratios, fitted, index)) is not None:
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
        return self.bandwidth if given is None else np.full(self.spaces.action_dim, given)

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


def prepare_importance_sampling(
    log: JudgedLog,
    data: TransitionDataset,
    spaces: Spaces,
    config: JudgeConfig,
    on_progress: OnProgress,
    parts: Spaces | None = None,
) -> ImportanceSampling:
    """The density of the logged actions: from the log where it holds one, else fitted."""
    unit_actions = np.clip(spaces.to_unit(log.actions), -1.0, 1.0)
    density, bandwidth = fit_density(log, unit_actions, config, on_progress, parts)
    source = "fitted"
    if "behavior_logprobs" in data.store.columns:
        logged = as_array(data.store.whole("behavior_logprobs")).astype(np.float64)
        density, source = checked_propensities(logged, spaces, data.info.source, parts), "as logged"
    return ImportanceSampling(log, spaces, unit_actions, density, bandwidth, source, config, parts)
