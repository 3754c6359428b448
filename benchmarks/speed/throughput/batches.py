"""The same random transitions for every candidate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import cycle
from typing import Any, TypeVar

import numpy as np
from protocol import ACTION_DIM, OBS_DIM, Spec

COUNT = 16
"""Batches that are gone through in turn: too many random rows to be learned by heart, which would end in
denormal gradients and slow arithmetic."""

Arrays = dict[str, np.ndarray[Any, np.dtype[np.float32]]]
Made = TypeVar("Made")


def make_batches(spec: Spec, lanes: tuple[int, ...] = ()) -> list[Arrays]:
    rng = np.random.default_rng(0)
    rows = (*lanes, spec.batch)

    def one() -> Arrays:
        values = {
            "obs": rng.standard_normal((*rows, OBS_DIM)),
            "actions": rng.uniform(-0.95, 0.95, (*rows, ACTION_DIM)),
            "rewards": rng.standard_normal(rows),
            "next_obs": rng.standard_normal((*rows, OBS_DIM)),
            "dones": rng.random(rows) < 0.01,
            "returns_to_go": rng.standard_normal(rows),
            "levels": rng.integers(0, ACTION_DIM, rows),
            "next_actions": rng.uniform(-0.95, 0.95, (*rows, ACTION_DIM)),
        }
        return {name: value.astype(np.float32) for name, value in values.items()}

    return [one() for _ in range(COUNT)]


def endless(spec: Spec, make: Callable[[Arrays], Made], lanes: tuple[int, ...] = ()) -> Iterator[Made]:
    """The batches in a library's own form, again and again."""
    return cycle([make(batch) for batch in make_batches(spec, lanes)])
