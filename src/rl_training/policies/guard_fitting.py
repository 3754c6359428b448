"""Fitting a guard: whitened units, centres by k-means, a reach for each, and the limit from held-out rows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.core.streams import torch_generator
from rl_training.policies.guard import Guard
from rl_training.policies.guard_settings import GuardConfig
from rl_training.policies.guarding import OBSERVATIONS, WITH_ACTIONS, GuardFacts

LLOYD_STEPS = 25
LEAST_VARIANCE = 0.01
"""Directions in which standardised data varies less are not stretched any further."""

CONSTANT = 1e-6
STEADY = 1e-3
"""A column that varies less than CONSTANT of its size is taken to vary by STEADY of it."""

LEAST_REACH = 1e-3
ROWS_PER_CENTRE = 10
"""Centres of fewer rows would describe these rows rather than where they come from."""
_CHUNK = 8192


def fit_guard(
    training: Tensor, held_out: Tensor, settings: GuardConfig, spaces: Spaces, source: str
) -> Guard:
    """A guard for points `[n, d]` in the user's units; `held_out` are rows that it is not fitted to."""
    settings.chosen_fallback.check(spaces)
    if len(training) < 2 or not len(held_out):
        raise DataError(f"{source}: a guard needs at least 3 rows, got {len(training) + len(held_out)}")
    generator = torch_generator(settings.seed, "guard")
    points, held_out = (
        rows[torch.randperm(len(rows), generator=generator)[: settings.max_rows]].double()
        for rows in (training, held_out)
    )
    mean, scale = points.mean(0), _scale(points)
    whitening = _whitening((points - mean) / scale)
    x = ((points - mean) / scale) @ whitening
    centres, owners = _k_means(x, max(1, min(settings.centres, len(x) // ROWS_PER_CENTRE)), generator)
    facts = GuardFacts(
        points=WITH_ACTIONS if settings.actions else OBSERVATIONS,
        centres=len(centres),
        percentile=settings.percentile,
        threshold=1.0,
        rows=len(points),
        held_out_rows=len(held_out),
        training_beyond=0.0,
        held_out_beyond=0.0,
        source=source,
        fallback=settings.chosen_fallback,
    )
    numbers = {"mean": mean, "scale": scale, "whitening": whitening, "centres": centres}
    plain = Guard(facts, {**numbers, "reach": _reaches(x, centres, owners)})
    # The next higher row: no more than the stated share may lie beyond.
    limit = np.percentile(novelties(plain, held_out).numpy(), settings.percentile, method="higher")
    threshold = max(float(limit), LEAST_REACH)
    known = Guard(facts, {**numbers, "reach": plain.reach * threshold})
    shares = [float((novelties(known, rows) > 1.0).double().mean()) for rows in (points, held_out)]
    known.facts = replace(facts, threshold=threshold, training_beyond=shares[0], held_out_beyond=shares[1])
    return known


def novelties(guard: Guard, points: Tensor) -> Tensor:
    """Novelty of many points, `[n]`."""
    with torch.no_grad():
        return torch.cat([guard(rows)[:, 0] for rows in torch.split(points, _CHUNK)])


def _scale(points: Tensor) -> Tensor:
    spread, size = points.std(0, correction=0), points.abs().mean(0)
    steady = torch.where(size > 0, STEADY * size, 1.0)
    return torch.where(spread > CONSTANT * size.clamp_min(CONSTANT), spread, steady)


def _whitening(x: Tensor) -> Tensor:
    variances, directions = torch.linalg.eigh(x.T @ x / len(x))
    whitening: Tensor = (directions / variances.clamp_min(LEAST_VARIANCE).sqrt()) @ directions.T
    return whitening


def _k_means(x: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Lloyd's iterations from rows drawn at random; a centre that nothing is nearest to stays."""
    centres = x[torch.randperm(len(x), generator=generator)[:count]]
    owners = _nearest(x, centres)
    for _ in range(LLOYD_STEPS):
        sums = torch.zeros_like(centres).index_add_(0, owners, x)
        sizes = torch.bincount(owners, minlength=count)[:, None]
        centres = torch.where(sizes > 0, sums / sizes.clamp_min(1), centres)
        before, owners = owners, _nearest(x, centres)
        if torch.equal(before, owners):
            break
    return centres, owners


def _nearest(x: Tensor, centres: Tensor) -> Tensor:
    return torch.cat([torch.cdist(rows, centres).argmin(-1) for rows in torch.split(x, _CHUNK)])


def _reaches(x: Tensor, centres: Tensor, owners: Tensor) -> Tensor:
    """Root mean square distance of a centre's rows, at least half of what is usual among the centres."""
    squares = (x - centres[owners]).square().sum(-1)
    sizes = torch.bincount(owners, minlength=len(centres))
    sums = torch.zeros(len(centres), dtype=x.dtype).index_add_(0, owners, squares)
    reaches = (sums / sizes.clamp_min(1)).sqrt()
    usual = reaches[sizes > 0].median()
    return reaches.clamp_min(max(0.5 * float(usual), LEAST_REACH))
