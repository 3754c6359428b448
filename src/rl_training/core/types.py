"""Names for data without a class of its own: what is written to files and read back, and arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy.typing as npt

State = dict[str, Any]
"""What a part saves: numbers, text, arrays, tensors, and lists and mappings of them. It reads it itself."""

Facts = Mapping[str, Any]
"""The same, or parsed JSON or YAML, to read only; whoever relies on an entry has checked it before."""

Array = npt.NDArray[Any]
"""An array whose type of numbers does not matter."""

STANDARD_FIELDS = ("obs", "actions", "rewards", "next_obs", "dones")
"""What a batch of every learner holds; `dones` means terminated, never truncated."""

PENALTIES = "penalties"
"""The batch field of what costs take off rewards, of learners that keep the two apart."""

Numbers = dict[str, float | None]
"""What an evaluation found; none where it could not be found."""


def number(value: object) -> float | None:
    """A finite number as it is, anything else as `None`: files may hold null, text or worse."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond every float
        return None
