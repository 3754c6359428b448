"""What a service tells of itself: counts, latency, and how far today's columns lie from the training data."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator

import numpy as np

from rl_training.core.drift import ColumnShares
from rl_training.core.spaces import FloatArray, Spaces

WINDOW = 1_000
"""Calls that drift, flags and bounds are told of."""
LATENCIES = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)
"""Upper ends of the histogram's bins, in seconds."""


class Watch:
    """Counts every call; the newest ones are kept to be compared with the training data."""

    def __init__(self, names: tuple[str, ...], training: dict[str, ColumnShares], spaces: Spaces) -> None:
        self.names, self.training, self.spaces = names, training, spaces
        self.calls: Counter[str] = Counter()
        self.flagged = 0
        self.swaps: Counter[str] = Counter()
        self.latencies = [0] * (len(LATENCIES) + 1)
        self.seconds = 0.0
        self.recent: deque[tuple[FloatArray, FloatArray, bool]] = deque(maxlen=WINDOW)

    def note(self, obs: FloatArray, action: FloatArray, flagged: bool, seconds: float) -> None:
        """One answered call; an action that is not there is NaN."""
        self.calls["answered"] += 1
        self.flagged += flagged
        self.latencies[bisect_left(LATENCIES, seconds)] += 1
        self.seconds += seconds
        self.recent.append((obs, action, flagged))

    def drift(self) -> dict[str, float]:
        """Population stability index of every column whose training data is known, over the recent calls."""
        if not self.training or not self.recent:
            return {}
        values = np.stack([obs for obs, _, _ in self.recent])
        told = {
            name: self.training[name].instability(values[:, index])
            for index, name in enumerate(self.names)
            if name in self.training
        }
        return {name: index for name, index in told.items() if index is not None}

    def on_bounds(self) -> float:
        """Share of recent actions of which a number lies on a bound."""
        boxes = [not choice for choice in self.spaces.choices] or [True] * self.spaces.action_columns
        if not self.recent or not any(boxes):
            return 0.0
        actions = np.stack([action for _, action, _ in self.recent])[:, boxes]
        _, _, low, high = self.spaces.scale
        return float(((actions <= low[boxes]) | (actions >= high[boxes])).any(axis=-1).mean())

    def lines(self, waiting: int, written: int, failing: bool) -> Iterator[str]:
        """The text format of Prometheus."""
        yield from _metric("calls_total", "counter", "Calls by how they ended.", self.calls, "outcome")
        yield from _metric("flagged_total", "counter", "Calls whose observation was flagged.", self.flagged)
        yield from _metric("swaps_total", "counter", "Changes of the policy file.", self.swaps, "outcome")
        recent = [flagged for _, _, flagged in self.recent]
        share = sum(recent) / len(recent) if recent else 0.0
        yield from _metric("recent_flagged_share", "gauge", f"Of the last {WINDOW} calls.", share)
        text = f"Share of the last {WINDOW} actions with a number on a bound."
        yield from _metric("recent_on_bounds_share", "gauge", text, self.on_bounds())
        text = f"Population stability index against the training data, last {WINDOW} calls."
        yield from _metric("drift", "gauge", text, self.drift(), "column")
        yield from _metric("decisions_waiting", "gauge", "Rows not yet in the decision log.", waiting)
        yield from _metric("decisions_written_total", "counter", "Rows in the decision log.", written)
        yield from _metric("decisions_failing", "gauge", "1 while rows cannot be written.", int(failing))
        yield from self._histogram()

    def _histogram(self) -> Iterator[str]:
        name = "rl_training_latency_seconds"
        yield f"# HELP {name} Time to answer a call."
        yield f"# TYPE {name} histogram"
        total = 0
        for end, count in zip((*LATENCIES, None), self.latencies, strict=True):
            total += count
            yield f'{name}_bucket{{le="{"+Inf" if end is None else end}"}} {total}'
        yield f"{name}_sum {self.seconds:.6f}"
        yield f"{name}_count {total}"


def _metric(
    name: str, kind: str, text: str, values: dict[str, float] | Counter[str] | float, label: str = ""
) -> Iterator[str]:
    yield f"# HELP rl_training_{name} {text}"
    yield f"# TYPE rl_training_{name} {kind}"
    if isinstance(values, dict):
        for key, value in values.items():
            escaped = key.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            yield f'rl_training_{name}{{{label}="{escaped}"}} {value:.6g}'
    else:
        yield f"rl_training_{name} {values:.6g}"
