"""The distance to the data as a module that exports trace, and how it is fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor, nn

from rl_training.config import ConfigModel, setting
from rl_training.core.errors import CheckpointError, DataError
from rl_training.core.schema import MAX_ROWS
from rl_training.core.spaces import Spaces
from rl_training.core.streams import torch_generator
from rl_training.policies.guard import OBSERVATIONS, WITH_ACTIONS, Fallback, GuardFacts


class GuardConfig(ConfigModel):
    """Settings of a guard; `fallback` and its numbers are in the action's units."""

    section: ClassVar[str] = "guard"

    centres: int = setting(256, "centres that stand for the data", ge=1, le=256)
    percentile: float = setting(99.0, "percentage of held-out rows that stays below the limit", gt=0, le=100)
    held_out_share: float = setting(0.2, "share of episodes that the limit is taken from", gt=0, lt=1)
    max_rows: int = setting(50_000, "rows that the centres are fitted to at most", ge=2, most=MAX_ROWS)
    actions: bool = setting(False, "also ask whether the action is one that was logged there")
    seed: int = setting(0, "seed of the split, of the rows and of the centres", ge=0)
    fallback: Literal["none", "hold", "action", "rate"] = setting(
        "none", "what is played when flagged: the policy's own, the last, a given action, or a limited change"
    )
    fallback_action: tuple[float, ...] | None = setting(
        None, "the action of fallback action, and what is played before there is a last one (none: the mean)"
    )
    fallback_rate: tuple[float, ...] | None = setting(
        None, "largest change per step of fallback rate (none: what nine of ten logged steps stay below)"
    )

    @classmethod
    def further_mistakes(cls, values: Mapping[str, object]) -> list[str]:
        kind = values.get("fallback", "none")
        lines = []
        if kind == "action" and values.get("fallback_action") is None:
            lines.append("fallback action needs fallback_action, in the action's units")
        if kind != "rate" and values.get("fallback_rate") is not None:
            lines.append(f"fallback_rate needs fallback rate, got fallback {kind}")
        return lines

    def chosen_fallback(
        self, first_action: Sequence[float], usual_change: Sequence[float] | None = None
    ) -> Fallback:
        """What the settings say; where they name none, `first_action` is played first, and `usual_change` is
        the most that `rate` allows in a step.
        """
        action = tuple(first_action) if self.fallback_action is None else self.fallback_action
        rate = self.fallback_rate
        if self.fallback == "rate" and rate is None and usual_change is not None:
            rate = tuple(usual_change)
        return Fallback(self.fallback, action, rate)


# The distance to the data, as a module that exports trace.


TENSORS = ("mean", "scale", "whitening", "centres", "reach")


class Guard(nn.Module):
    """Points `[n, d]` (observations, or these and actions, in the user's units) -> novelty `[n, 1]`."""

    mean: Tensor
    scale: Tensor
    whitening: Tensor
    centres: Tensor
    reach: Tensor

    def __init__(self, facts: GuardFacts, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.facts = facts
        for name in TENSORS:
            # Kept in numbers that float32 holds, so that files store them in half the room.
            self.register_buffer(name, tensors[name].detach().float().double())

    @property
    def with_actions(self) -> bool:
        return self.facts.points == WITH_ACTIONS

    def points(self, obs: Tensor, actions: Tensor) -> Tensor:
        values = obs.to(self.mean.dtype)
        return torch.cat([values, actions.to(self.mean.dtype)], -1) if self.with_actions else values

    def forward(self, points: Tensor) -> Tensor:
        """|x - c|^2 as |x|^2 + |c|^2 - 2 x.c: one product for all centres.

        What is not a number is infinitely far: NaN would be below every limit, also in programs of others.
        """
        x = ((points - self.mean) / self.scale) @ self.whitening
        lengths = (self.centres * self.centres).sum(-1)
        squared = (x * x).sum(-1, keepdim=True) + lengths - 2.0 * (x @ self.centres.t())
        distances = squared.nan_to_num(torch.inf, torch.inf, -torch.inf) / (self.reach * self.reach)
        nearest = distances.amin(-1, keepdim=True)
        return nearest.clamp_min(0.0).sqrt().float()

    def pack(self) -> dict[str, Any]:
        """As a checkpoint stores it."""
        tensors = {name: getattr(self, name).float().cpu() for name in TENSORS}
        return {"facts": self.facts.to_dict(), "tensors": tensors}


def unpack_guard(packed: Mapping[str, Any], spaces: Spaces) -> Guard:
    """The guard out of a file that may say anything; what does not fit the policy is refused."""
    facts = GuardFacts.from_dict(packed["facts"], spaces)
    tensors: Mapping[str, Tensor] = packed["tensors"]
    size = spaces.obs_dim + (spaces.action_dim if facts.points == WITH_ACTIONS else 0)
    shapes = {
        "mean": (size,),
        "scale": (size,),
        "whitening": (size, size),
        "centres": (facts.centres, size),
        "reach": (facts.centres,),
    }
    for name, shape in shapes.items():
        found = tensors.get(name)
        if not isinstance(found, Tensor) or tuple(found.shape) != shape or not found.isfinite().all():
            raise CheckpointError(f"guard tensor {name} must hold finite numbers of shape {shape}")
    if not (tensors["scale"] > 0).all() or not (tensors["reach"] > 0).all():
        raise CheckpointError("guard tensors scale and reach must be > 0")
    return Guard(facts, tensors)


# Fitting a guard: whitened units, centres by k-means, a reach for each, and the limit from held-out rows.


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
    training: Tensor,
    held_out: Tensor,
    settings: GuardConfig,
    spaces: Spaces,
    source: str,
    first_action: Sequence[float],
    usual_change: Sequence[float] | None = None,
) -> Guard:
    """A guard for points `[n, d]` in the user's units; `held_out` are rows that it is not fitted to.

    `first_action` is what is fallen back to before there is a last one, and `usual_change` how far actions
    go in a step of a log, unless the settings say it.
    """
    fallback = settings.chosen_fallback(first_action, usual_change)
    fallback.check(spaces)
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
        fallback=fallback,
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
