"""Limits of costs: how much of what must not happen too often is allowed, per step or per episode."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from rl_training.core.errors import ConfigError, did_you_mean, shown
from rl_training.core.types import Array

_WRITTEN = re.compile(r"\s*(\S+?)(?:\s+per\s+(step|episode))?\s*")


@dataclass(frozen=True)
class Limit:
    """The most that a cost may be: on average over steps, or over what episodes add up to."""

    name: str
    bound: float
    per: Literal["step", "episode"] = "step"

    @classmethod
    def parse(cls, name: str, value: object) -> Limit:
        """Read `0.01` (per step) or `3 per episode`."""
        match = _WRITTEN.fullmatch(value if isinstance(value, str) else f"{value}")
        try:
            bound = math.nan if match is None or isinstance(value, bool) else float(match[1])
        except ValueError:
            bound = math.nan
        if match is None or not math.isfinite(bound):
            raise ConfigError(
                f"limit of {name} must be a number per step such as 0.01, or such as 3 per episode, "
                f"got {shown(value)}"
            )
        return cls(name, bound, "episode" if match[2] == "episode" else "step")

    def of_episodes(self, totals: Array, steps: Array) -> Array:
        """What of each episode is compared with the bound: its mean over steps, or its sum."""
        return totals / steps if self.per == "step" else totals

    def __str__(self) -> str:
        return f"{self.bound:g} per {self.per}"


def parse_limits(given: Mapping[str, object]) -> tuple[Limit, ...]:
    """A mapping such as `{overheat: 0.01, shocks: 3 per episode}`."""
    return tuple(Limit.parse(name, value) for name, value in given.items())


def check_costs_named(setting: str, names: Sequence[str], costs: Sequence[str], source: str) -> None:
    """Every limit and every weight is of a cost that the data has."""
    for name in names:
        if name not in costs:
            known = f"there are {', '.join(costs)}" if costs else "no cost is declared"
            raise ConfigError(
                f"{setting} names {name!r}, which is no cost of {source}{did_you_mean(name, list(costs))}; "
                f"{known}; declare it: --cost '{name}: …', costs: {{{name}: …}}"
            )
