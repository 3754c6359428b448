"""How likely were the logged actions? From the log where it says so, else from a fitted Gaussian."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl_training.algorithms.learner import Batch, Learner, Losses, Noise, NoiseShapes
from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.core.streams import derive_seed, torch_generator
from rl_training.judging.fitting import Rows, Told, fit
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog
from rl_training.judging.settings import JudgeConfig
from rl_training.models.distributions import gaussian_log_prob
from rl_training.models.models import PolicyModel
from rl_training.models.networks import MLP

LOG_STD_RANGE = (-5.0, 1.0)
HELD_OUT_SHARE = 0.2
SMALLEST_BANDWIDTH = 0.02


class DensityModel(PolicyModel):
    """N(tanh(m(s)), std(s)) in [-1, 1] units: actions on a bound are as good as any."""

    net: MLP

    def build(self, generator: torch.Generator | None) -> None:
        self.net = MLP(self.obs_dim, 2 * self.action_dim, self.config.plan("critic"), generator=generator)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        mean, spread = self.net(obs).chunk(2, dim=-1)
        low, high = LOG_STD_RANGE
        return mean.tanh(), low + (high - low) * spread.sigmoid()


class Density(Learner):
    """Maximum likelihood of the logged actions."""

    model: DensityModel

    def setup(self) -> None:
        self.net = self.model
        self.add_optimizer("density", self.model.parameters(), "actor")

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {}

    def step(self, batch: Batch, noise: Noise, stage: str) -> Losses:
        loss = -gaussian_log_prob(batch["actions"], *self.net(batch["obs"])).mean(-1)
        self.minimize("density", loss)
        return {"density_loss": loss.detach()}


@dataclass(frozen=True)
class BehaviourDensity:
    """log mu(a|s) of every logged row in [-1, 1] units, and how far actions stray from their mean."""

    log_density: Float64Array
    bandwidth: Float64Array
    """std of what the mean leaves unexplained, per action"""
    source: str


def unit_spaces(log: JudgedLog, spaces: Spaces | None) -> Spaces:
    """The bounds that [-1, 1] stands for: the stated ones, else the range of the logged actions."""
    if spaces is not None:
        return spaces
    low, high = log.actions.min(axis=0), log.actions.max(axis=0)
    high = np.where(high > low, high, low + 1.0)
    return Spaces(log.obs.shape[1], tuple(low.tolist()), tuple(high.tolist()))


def fit_density(
    log: JudgedLog, unit_actions: FloatArray, config: JudgeConfig, tell: Told
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
            hidden_sizes=config.hidden_sizes,
            generator=torch_generator(config.seed, "judge", "density network"),
        ),
        learning_rate=config.learning_rate,
    )
    best: tuple[float, dict[str, Tensor]] = (np.inf, {})

    @torch.no_grad()
    def keep_the_best(done: int) -> None:
        nonlocal best
        distribution = learner.net(columns["obs"][unseen])
        surprise = float(-gaussian_log_prob(columns["actions"][unseen], *distribution).mean())
        if surprise < best[0]:
            best = surprise, {name: value.clone() for name, value in learner.model.state_dict().items()}

    kept = torch.from_numpy(rows)
    fit(
        learner,
        Rows(lambda drawn: {name: values[kept[drawn]] for name, values in columns.items()}, len(rows)),
        name="density",
        updates=config.density_updates,
        config=config,
        tell=tell,
        notice=keep_the_best,
    )
    learner.model.load_state_dict(best[1])
    with torch.no_grad():
        mean, log_std = learner.net(columns["obs"])
        log_density = gaussian_log_prob(columns["actions"], mean, log_std).double().numpy()
        residual = (columns["actions"] - mean).double().std(dim=0).numpy()
    return log_density, np.maximum(residual, SMALLEST_BANDWIDTH)


def checked_propensities(values: Float64Array, spaces: Spaces, source: str) -> Float64Array:
    """Logged log-densities, from the user's action units to [-1, 1]."""
    if not np.isfinite(values).all():
        raise DataError(f"{source}: behavior_logprobs must be finite log-densities, found NaN or infinity")
    if len(values) > 1 and np.ptp(values) == 0.0:
        raise DataError(
            f"{source}: behavior_logprobs are all {values[0]:g}, which no density of continuous actions is; "
            "leave the column out and a density is fitted"
        )
    half_widths = (np.array(spaces.action_high) - np.array(spaces.action_low)) / 2.0
    converted: Float64Array = values + np.log(half_widths).sum()
    return converted


def kernel_log_density(unit_actions: FloatArray, own: FloatArray, bandwidth: Float64Array) -> Float64Array:
    """log of a Gaussian kernel around a deterministic policy's actions."""
    spread = torch.from_numpy(np.log(bandwidth))
    actions, centers = (torch.from_numpy(each).double() for each in (unit_actions, own))
    density: Float64Array = gaussian_log_prob(actions, centers, spread).numpy()
    return density
