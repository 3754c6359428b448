"""The plant of the demo: a hot-water tank, the operators who ran it by hand, and the log that they left.

Training and judging see the log alone. Afterwards the plant can be asked what a policy is really worth.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rl_training.core.files import write_text_atomic

Array = npt.NDArray[np.float64]
Acts = Callable[[Array], Array | npt.NDArray[np.float32]]
"""Readings `[n, 3]` -> settings `[n, 2]`."""

OBSERVATIONS = ("T_tank", "level", "outflow")
ACTIONS = ("heater", "valve")
COLUMNS = ("run", "time", "operator", *OBSERVATIONS, *ACTIONS, "score")
MINUTES = 60
"""Length of a run. The plant goes on after it, only the record ends."""

WANTED_TEMPERATURE, WANTED_LEVEL = 60.0, 50.0
COLD, USUAL_OUTFLOW = 12.0, 14.0
LITRES, INFLOW, HEAT = 2.0, 0.35, 12.0
"""Litres per % of level; litres a minute per % of valve; degrees times litres a minute per % of heater."""


def start(runs: int, draws: np.random.Generator) -> Array:
    """Readings as somebody finds them when a run begins."""
    return draws.uniform((35.0, 20.0, 8.0), (75.0, 80.0, 20.0), (runs, 3))


def step(
    readings: Array, settings: Array | npt.NDArray[np.float32], draws: np.random.Generator
) -> tuple[Array, Array]:
    """One minute later: the readings, and the score of that minute."""
    temperature, level, outflow = readings.T
    heater, valve = np.clip(settings, 0.0, 100.0).T
    inflow = INFLOW * valve
    warming = (inflow * (COLD - temperature) + HEAT * heater) / (LITRES * level + inflow)
    shaken = draws.normal(0.0, (0.3, 1.0), (len(readings), 2))
    after = np.stack(
        [
            np.clip(temperature + warming + shaken[:, 0], COLD, 95.0),
            np.clip(level + (inflow - outflow) / LITRES, 5.0, 100.0),
            np.clip(outflow + 0.1 * (USUAL_OUTFLOW - outflow) + shaken[:, 1], 5.0, 25.0),
        ],
        axis=1,
    )
    return after, score(after)


def score(readings: Array) -> Array:
    """How good a minute was: 1 at 60 °C and half full, -3 far away from it."""
    too_warm = (readings[:, 0] - WANTED_TEMPERATURE) / 10.0
    too_full = (readings[:, 1] - WANTED_LEVEL) / 20.0
    return np.maximum(1.0 - too_warm**2 - too_full**2, -3.0)


@dataclass(frozen=True)
class Operator:
    """Somebody who sets heater and valve by the readings, more or less well."""

    name: str
    heat: float
    """% of heater per degree that is missing"""
    fill: float
    """% of valve per % of level that is missing"""
    foresight: float
    """how much of a change of the outflow is made up for at once, 0 to 1"""
    unrest: float
    """standard deviation of the hand, in %"""

    def meant(self, readings: Array) -> Array:
        temperature, level, outflow = readings.T
        expected = USUAL_OUTFLOW + self.foresight * (outflow - USUAL_OUTFLOW)
        heater = expected * (WANTED_TEMPERATURE - COLD) / HEAT + self.heat * (
            WANTED_TEMPERATURE - temperature
        )
        valve = expected / INFLOW + self.fill * (WANTED_LEVEL - level)
        return np.stack([heater, valve], axis=1)

    def set_by_hand(self, readings: Array, draws: np.random.Generator) -> Array:
        meant = self.meant(readings)
        return np.clip(meant + draws.normal(0.0, self.unrest, meant.shape), 0.0, 100.0)


OPERATORS = (
    Operator("Ada", heat=3.0, fill=1.5, foresight=0.0, unrest=12.0),  # steady, but does not look ahead
    Operator("Ben", heat=0.8, fill=0.4, foresight=0.9, unrest=12.0),  # looks ahead, but hesitates
    Operator("Cleo", heat=10.0, fill=5.0, foresight=0.3, unrest=15.0),  # quick, sometimes too quick
    Operator("Dan", heat=0.2, fill=0.2, foresight=0.0, unrest=25.0),  # new here
)


def write_log(path: str | Path, *, runs: int, seed: int) -> None:
    """Write a CSV with one row per minute of so many runs, the operators taking turns."""
    draws = np.random.default_rng([seed, 0])
    on_duty = np.arange(runs) % len(OPERATORS)
    readings, minutes = start(runs, draws), list[Array]()
    for _ in range(MINUTES):
        everybody = np.stack([operator.set_by_hand(readings, draws) for operator in OPERATORS])
        settings = everybody[on_duty, np.arange(runs)]
        after, scores = step(readings, settings, draws)
        minutes.append(np.column_stack([readings, settings, scores]))
        readings = after
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(COLUMNS)
    for run, values in enumerate(np.stack(minutes, axis=1)):
        name = OPERATORS[on_duty[run]].name
        table.writerows((run, minute, name, *np.round(row, 3)) for minute, row in enumerate(values))
    write_text_atomic(Path(path), text.getvalue())


@dataclass(frozen=True)
class Truth:
    """What everybody really earns: mean sum of discounted scores from the beginning of a run."""

    operators: Mapping[str, float]
    policies: Mapping[str, float]

    @property
    def log(self) -> float:
        """Of the logged behaviour: the operators took turns."""
        return float(np.mean(list(self.operators.values())))


def ask_the_plant(policies: Mapping[str, Acts], *, gamma: float, seed: int) -> Truth:
    """Try out the operators and the policies, all on the same new runs."""
    hands = {
        operator.name: partial(operator.set_by_hand, draws=np.random.default_rng([seed, 2]))
        for operator in OPERATORS
    }
    operators, earned = (
        {name: true_value(acts, gamma=gamma, seed=seed) for name, acts in several.items()}
        for several in (hands, policies)
    )
    return Truth(operators, earned)


def true_value(acts: Acts, *, gamma: float, seed: int, runs: int = 500) -> float:
    """The mean over new runs, each followed until what is left no longer counts."""
    draws = np.random.default_rng([seed, 1])
    readings, total, weight = start(runs, draws), np.zeros(runs), 1.0
    while weight > 1e-3:
        readings, scores = step(readings, acts(readings), draws)
        total += weight * scores
        weight *= gamma
    return float(total.mean())
