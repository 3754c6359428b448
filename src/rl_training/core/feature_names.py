"""What the numbers of observations and actions are called, and their units, where a log names them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class FeatureNames:
    """One name per number, or none where nobody named them; units by name."""

    observations: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.observations or self.actions)

    def name_of(self, kind: str, index: int) -> str:
        """What one observed or acted number is called: `T_tank (°C)`, or `observation 3`."""
        names = self.observations if kind == "observation" else self.actions
        if not index < len(names):
            return f"{kind} {index}"
        unit = self.units.get(names[index])
        return names[index] if unit is None else f"{names[index]} ({unit})"

    def listed(self, kind: str) -> list[str]:
        """All names of a kind, with units."""
        names = self.observations if kind == "observation" else self.actions
        return [self.name_of(kind, index) for index in range(len(names))]

    def to_dict(self) -> dict[str, Any]:
        return {
            "observations": list(self.observations),
            "actions": list(self.actions),
            "units": dict(self.units),
        }

    @classmethod
    def from_dict(cls, stored: object) -> FeatureNames:
        """Read what `to_dict` wrote. Names only describe: what a file says wrongly about them is left out."""
        if not isinstance(stored, Mapping):
            return cls()
        units = stored.get("units")
        return cls(
            _texts(stored.get("observations")),
            _texts(stored.get("actions")),
            {str(key): str(value) for key, value in units.items()} if isinstance(units, Mapping) else {},
        )


def _texts(values: object) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, list | tuple) else ()
