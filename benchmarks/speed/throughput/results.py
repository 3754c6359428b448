"""The measured cells as speeds and ratios."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cells import Cell
from peers import COMPARISONS, JAX_PEERS, TORCH_PEERS, counted
from protocol import SEEDS

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
    def load(cls, folder: Path, *others: Path) -> Results:
        """Of one or more output directories of the same machine; where a cell is in two, the first counts."""
        cells: dict[str, dict[str, Any]] = {}
        machines: list[dict[str, Any]] = []
        for place in (folder, *others):
            for file in sorted((place / "cells").glob("*.json")):
                cells.setdefault(file.stem, json.loads(file.read_text()))
            if (place / "machine.json").exists():
                machines.append(json.loads((place / "machine.json").read_text()))
        if any(machine != machines[0] for machine in machines):
            raise SystemExit("the directories are of different machines or versions: one report for each")
        return cls(cells, machines[0] if machines else {})

    def candidates(self, cell: Cell) -> dict[str, Any]:
        stored: dict[str, Any] = self.cells.get(cell.name, {}).get("candidates", {})
        return stored

    def speed(self, cell: Cell, candidate: str, round_: str = "median") -> float | None:
        """Of the median round, or of the fastest (`min`); none where the candidate was not measured."""
        clock = "cpu" if cell.threads == 1 else "wall"
        values = self.candidates(cell).get(candidate, {}).get(clock)
        return None if values is None else 1.0 / values[round_]

    def ratio(self, cell: Cell, candidate: str, other: str) -> float | None:
        return quotient(self.speed(cell, candidate), self.speed(cell, other))

    def fastest_torch_peer(self, cell: Cell) -> Speed | None:
        """Of those that were measured and compute the same loss."""
        return self._fastest(cell, TORCH_PEERS)

    def fastest_jax_peer(self, cell: Cell) -> Speed | None:
        """Likewise."""
        return self._fastest(cell, JAX_PEERS)

    def _fastest(self, cell: Cell, peers: tuple[str, ...]) -> Speed | None:
        speeds = [
            Speed(name, speed) for name in counted(cell.algo, peers) if (speed := self.speed(cell, name))
        ]
        return max(speeds, key=lambda each: each.value, default=None)

    def stack_gain(self, cell: Cell, mode: str) -> float | None:
        """Eight seeds at once against eight runs one after another."""
        ratio = self.ratio(cell, f"{mode}-stack", mode)
        return None if ratio is None else SEEDS * ratio

    def run_overhead(self, cell: Cell) -> float | None:
        """Share of time that a whole run adds to its bare updates."""
        ratio = self.ratio(cell, "compiled", "compiled-run")
        return None if ratio is None else ratio - 1.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "machine": self.machine,
            "peers": {
                algo: {name: asdict(entry) for name, entry in entries.items()}
                for algo, entries in COMPARISONS.items()
            },
            "cells": self.cells,
        }


def quotient(above: float | None, below: float | None) -> float | None:
    return None if above is None or below is None else above / below
