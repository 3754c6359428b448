"""Measures one cell: all candidates are started and warmed up, then asked in turn, round after round."""

from __future__ import annotations

import os
import statistics
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cells import Cell, base_name
from host import Worker, WorkerFailed, workers

RUN_UPDATES = 1000
"""Updates per round of a whole run: its default log interval, so that each round logs once."""
STEP_FACTOR = 2.0
"""Environment steps vary more than updates: episodes end."""


@dataclass(frozen=True)
class Effort:
    rounds: int
    seconds: float
    starts: int = 1
    """Processes of every candidate, one after another: where memory happens to lie makes a few percent."""


def measure(
    cell: Cell,
    pythons: dict[str, Path],
    missing: dict[str, str],
    checkouts: dict[str, str],
    effort: Effort,
    only: Collection[str] | None = None,
) -> dict[str, Any]:
    """The cell's result; candidates that cannot run say why instead of a time."""
    names = [name for name in cell.candidates if only is None or base_name(name) in only]
    available = sorted(os.sched_getaffinity(0))
    if len(available) < cell.threads:
        raise SystemExit(f"{cell.threads} threads need as many processor cores, there are {len(available)}")
    results: dict[str, Any] = {
        name: {"error": missing[base_name(name)]} for name in names if base_name(name) in missing
    }
    answers: dict[str, list[dict[str, Any]]] = {name: [] for name in names if name not in results}
    for _ in range(effort.starts):
        one_start(cell, pythons, checkouts, effort, available, answers, results)
    results |= {name: summary(each) for name, each in answers.items()}
    return {
        "cell": asdict(cell),
        "effort": asdict(effort),
        "candidates": {name: results[name] for name in names},
    }


def one_start(
    cell: Cell,
    pythons: dict[str, Path],
    checkouts: dict[str, str],
    effort: Effort,
    available: list[int],
    answers: dict[str, list[dict[str, Any]]],
    results: dict[str, Any],
) -> None:
    """Start every candidate and add its answers; one that fails is left out from then on."""
    cores = tuple(available[-cell.threads :])
    # Starting up may use every core; nothing is measured meanwhile.
    places = [
        (available[index % len(available)],) if cell.threads == 1 else cores for index in range(len(answers))
    ]
    specs = {
        name: cell.spec(name, place, checkouts.get(name, ""))
        for name, place in zip(answers, places, strict=True)
    }
    with workers(specs, {name: pythons[base_name(name)] for name in answers}) as started:
        counts = get_ready(started, cell, effort, cores, results)
        for _ in range(min(effort.rounds, 3) if cell.kind == "run" else effort.rounds):
            for name in [name for name in counts if name not in results]:
                try:
                    answers[name].append(started[name].ask(counts[name]))
                except WorkerFailed as problem:
                    results[name] = {"error": f"failed: {problem}"}
    for name in results.keys() & answers.keys():
        del answers[name]


def get_ready(
    started: dict[str, Worker], cell: Cell, effort: Effort, cores: tuple[int, ...], results: dict[str, Any]
) -> dict[str, int]:
    """Wait for every worker, pin it, and find out how many updates fill a round."""
    alive = []
    for name, worker in started.items():
        try:
            worker.read()
            alive.append(name)
        except WorkerFailed as problem:
            results[name] = {"error": f"failed: {problem}"}
            worker.close()
    for name in alive:
        started[name].pin(cores)
    return {name: round_size(started[name], cell, effort) for name in alive}


def round_size(worker: Worker, cell: Cell, effort: Effort) -> int:
    trial = worker.ask(1)
    trial = worker.ask(trial["unit"] * max(1, int(0.1 * trial["count"] / trial["wall"] / trial["unit"])))
    if cell.kind == "run":
        return RUN_UPDATES
    seconds = effort.seconds * (STEP_FACTOR if cell.kind == "steps" else 1.0)
    calls = seconds * trial["count"] / trial["wall"] / trial["unit"]
    return int(trial["unit"] * max(1, round(calls)))


def summary(answers: list[dict[str, Any]]) -> dict[str, Any]:
    """Seconds per update: median, minimum and every round, by both clocks."""
    result: dict[str, Any] = {"updates_per_round": answers[0]["count"]}
    for clock in ("cpu", "wall"):
        each = [answer[clock] / answer["count"] for answer in answers]
        result[clock] = {"median": statistics.median(each), "min": min(each), "rounds": each}
    return result
