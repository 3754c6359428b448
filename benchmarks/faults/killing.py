"""What the benchmarks that kill have in common: whom to kill, and what differs afterwards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

STATE = ("counters", "learner", "streams", "collector", "exploration", "replay", "callbacks")
"""Parts of a training state that a kill must not change."""


def differences(left: Any, right: Any, name: str = "") -> list[str]:
    """Names of the values that are not equal bit for bit."""
    if isinstance(left, dict) and isinstance(right, dict):
        found = [f"{name}/{key}" for key in left.keys() ^ right.keys()]
        return found + [
            line
            for key in left.keys() & right.keys()
            for line in differences(left[key], right[key], f"{name}/{key}")
        ]
    same = torch.equal(left, right) if isinstance(left, torch.Tensor) else repr(left) == repr(right)
    return [] if same else [name]


def descendants(pid: int) -> list[int]:
    """Process ids below one process, read while it still lives."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [found for child in map(int, children) for found in (child, *descendants(child))]
