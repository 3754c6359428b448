"""The measured cells as speeds and ratios."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cells import Cell
from peers import COMPARISONS, JAX_PEERS, TORCH_PEERS, counted
from protocol import SEEDS
from stand_ins import CORL_COUNTS, stand_ins

Condition = tuple[int, int]
"""Hidden width and number of threads."""


@dataclass(frozen=True)
class Speed:
    """Updates (or environment steps) per second of a named candidate."""

    name: str
    value: float


class Results:
    """One thread is compared by processor time, more by wall time: threads that wait for work by spinning use
    processor time without doing anything."""

    def __init__(self, cells: dict[str, dict[str, Any]], machine: dict[str, Any]) -> None:
        self.cells, self.machine = cells, machine

    @classmethod
    def load(cls, folder: Path) -> Results:
        cells = {
            file.stem: json.loads(file.read_text()) for file in sorted((folder / "cells").glob("*.json"))
        }
        machine = folder / "machine.json"
        return cls(cells, json.loads(machine.read_text()) if machine.exists() else {})

    def candidates(self, cell: Cell) -> dict[str, Any]:
        stored: dict[str, Any] = self.cells.get(cell.name, {}).get("candidates", {})
        return stored

    def speed(self, cell: Cell, candidate: str) -> float | None:
        """Of the median round; none where the candidate was not measured."""
        clock = "cpu" if cell.threads == 1 else "wall"
        values = self.candidates(cell).get(candidate, {}).get(clock)
        return None if values is None else 1.0 / values["median"]

    def ratio(self, cell: Cell, candidate: str, other: str) -> float | None:
        return quotient(self.speed(cell, candidate), self.speed(cell, other))

    def fastest_torch_peer(self, cell: Cell) -> Speed | None:
        """Of those that compute the same loss; CORL's stand-in takes part where it counts."""
        speeds = [
            Speed(name, speed)
            for name in counted(cell.algo, TORCH_PEERS)
            if (speed := self.speed(cell, name))
        ]
        if cell.algo in CORL_COUNTS and (corl := self.stand_in(cell, "CORL")) is not None:
            speeds.append(corl)
        return max(speeds, key=lambda each: each.value, default=None)

    def fastest_jax_peer(self, cell: Cell) -> Speed | None:
        speeds = [
            Speed(name, speed) for name in counted(cell.algo, JAX_PEERS) if (speed := self.speed(cell, name))
        ]
        if (corl := self.stand_in(cell, "JAX-CORL")) is not None:
            speeds.append(corl)
        return max(speeds, key=lambda each: each.value, default=None)

    def stand_in(self, cell: Cell, name: str) -> Speed | None:
        relative = stand_ins(cell.algo, cell.hidden, cell.threads).get(name)
        reference = self.speed(cell, "d3rlpy")
        if relative is None or reference is None:
            return None
        return Speed(f"{name} (stand-in)", relative * reference)

    def stack_gain(self, cell: Cell, mode: str) -> float | None:
        """Eight seeds at once against eight runs one after another."""
        ratio = self.ratio(cell, f"{mode}-stack", mode)
        return None if ratio is None else SEEDS * ratio

    def run_overhead(self, cell: Cell) -> float | None:
        """Share of time that a whole run adds to its bare updates."""
        ratio = self.ratio(cell, "compiled", "compiled-run")
        return None if ratio is None else ratio - 1.0

    def to_dict(self) -> dict[str, Any]:
        from targets import evaluate

        return {
            "machine": self.machine,
            "targets": [asdict(row) | {"met": row.met} for row in evaluate(self)],
            "peers": {
                algo: {name: asdict(entry) for name, entry in entries.items()}
                for algo, entries in COMPARISONS.items()
            },
            "cells": self.cells,
        }


def quotient(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below
