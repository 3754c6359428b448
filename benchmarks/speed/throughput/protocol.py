"""What the benchmark and its workers share: the description of a measurement and how it is asked for.

A worker is one candidate (our update, a peer's, the floor) in a process of its own. It warms up, prints one
JSON line, and then answers every line `N` on its standard input with the time that N more updates took.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TextIO

OBS_DIM, ACTION_DIM = 17, 6
CHOICES = ("dqn", "discrete_cql")
"""Algorithms whose action is one choice, of as many levels as others have numbers."""
SEEDS = 8
"""Size of a stack."""
WARM_UP = 6
"""Updates before a worker reports for duty; the first ones compile."""


@dataclass(frozen=True)
class Spec:
    """One candidate of one cell."""

    candidate: str
    module: str
    kind: str
    algo: str
    hidden: int
    batch: int
    threads: int
    env_id: str = ""
    cores: tuple[int, ...] = ()
    checkout: str = ""
    """Where a peer that is no package lies."""

    @property
    def widths(self) -> tuple[int, int]:
        return (self.hidden, self.hidden)


class Meter:
    """Counts updates as they happen and, each time as many as were asked for are done, says how long it took.

    The training loop of a library calls `add` from its own callback, so that bare updates, whole runs and
    environment steps are measured in the same way.
    """

    def __init__(self, *, unit: int = 1, warm_up: int = WARM_UP) -> None:
        self.unit = unit
        self.left = max(warm_up, 2 * unit)
        self.count = self.left
        self.start = clocks()

    def add(self, updates: int = 1) -> None:
        self.left -= updates
        if self.left > 0:
            return
        cpu, wall = (now - then for now, then in zip(clocks(), self.start, strict=True))
        say({"cpu": cpu, "wall": wall, "count": self.count - self.left, "unit": self.unit})
        line = sys.stdin.readline()
        if not line.strip():
            leave()
        self.left = self.count = int(line)
        self.start = clocks()

    def repeat(self, update: Callable[[], Any]) -> None:
        """Bare updates: `update` makes `unit` of them."""
        while True:
            update()
            self.add(self.unit)


def clocks() -> tuple[float, float]:
    """Processor time of all threads, and wall time."""
    return time.process_time(), time.perf_counter()


ANSWERS: list[TextIO] = []


def keep_stdout_clean() -> None:
    """Answers keep the real standard output; what libraries print goes to standard error."""
    ANSWERS.append(os.fdopen(os.dup(1), "w"))
    os.dup2(2, 1)


def say(answer: dict[str, Any]) -> None:
    ANSWERS[0].write(json.dumps(answer) + "\n")
    ANSWERS[0].flush()


def leave() -> None:
    """The benchmark is done with this worker: no library gets to save or to evaluate anything."""
    sys.stderr.flush()
    os._exit(0)
