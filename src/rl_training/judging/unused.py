"""Which column would explain what is hidden? Tried are those of the log that no observation holds."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from rl_training.core.streams import derive_seed
from rl_training.data.episodes import IntArray
from rl_training.data.unused import UnusedColumn
from rl_training.judging.leftovers import SURE, Found, Unexplained, added_by
from rl_training.judging.log import Float64Array

MOST_LEVELS = 12
"""Different values up to which each has coefficients of its own; beyond, a number is taken as a number."""

MOST_COEFFICIENTS = 600
"""With more, a value shifts what follows and does not change how it answers."""

ENOUGH = 0.5
"""Share of what is hidden that a column has to explain before it is named."""


@dataclass(frozen=True)
class Tried:
    """What the unused columns have to say of leftovers."""

    columns: tuple[str, ...] = ()
    """those that were tried"""
    best: str | None = None
    """the one that explains most, where that is enough"""
    has_few_values: bool = False

    def sentence(self, unknown: str) -> str:
        """What to do about it; `unknown` is what can be said where no column explains it."""
        if self.best is not None:
            alone = ", or judge the rows of each of its values alone" if self.has_few_values else ""
            return (
                f"The column {self.best}, which is no observation, explains it: add it to the observations "
                f"(--obs) and train with it{alone}."
            )
        if not self.columns:
            return unknown
        return f"{unknown} No other column of the log explains it (tried: {', '.join(self.columns)})."


def tried(left: Unexplained, target: int, share: float, unused: Iterable[UnusedColumn]) -> Tried:
    """The unused column that explains most of the leftovers in column `target`, of which `share` can be."""
    names, best, few, most = [], None, False, ENOUGH * share
    for column in unused:
        shaped = in_shape(column, left.rows)
        if shaped is None:
            continue
        names.append(column.name)
        found = explained_by(left, shaped)[target]
        if found.share >= most and found.errors > SURE:
            best, most = column.name, found.share
            few = len(np.unique(column.values)) <= MOST_LEVELS
    return Tried(tuple(names), best, few)


def in_shape(column: UnusedColumn, rows: IntArray) -> Float64Array | None:
    """What a fit sees of a column: a place per value where they are few, else the number and its square.

    None where it says nothing: one value everywhere, or words as different as the notes of a day.
    """
    values = np.asarray(column.values, dtype=np.float64)[rows]
    known, places = np.unique(values, return_inverse=True)
    if len(known) < 2 or not np.isfinite(values).all():
        return None
    if len(known) <= MOST_LEVELS:
        return np.eye(len(known))[places]
    if column.words:
        return None
    ordered = np.clip((values - np.median(values)) / max(float(values.std()), 1e-12), -4.0, 4.0)
    return np.stack([np.ones(len(values)), ordered, ordered**2], axis=1)


def explained_by(left: Unexplained, shaped: Float64Array) -> list[Found]:
    """What a column says of leftovers, beyond what states and actions do: fitted on one half of the episodes,
    asked of the other. A level of its own for each value, and slopes of its own in states and actions.
    """
    plain = np.concatenate([np.ones((len(shaped), 1)), left.inputs], axis=1)
    more = shaped
    if shaped.shape[1] * plain.shape[1] <= MOST_COEFFICIENTS:
        more = (shaped[:, :, None] * plain[:, None, :]).reshape(len(shaped), -1)
    draws = np.random.default_rng(derive_seed(0, "judge", "unused"))  # plants may take turns
    side = draws.permutation(int(left.episodes.max()) + 1)[left.episodes] % 2 == 0
    return added_by(more, left.inputs, left.residuals, left.episodes, side)
