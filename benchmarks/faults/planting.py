"""A fault that tests must notice: what it breaks, where, by which change."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """`old` stands once in `file` (under src/rl_training); `first` names the tests to run first."""

    breaks: str
    file: str
    old: str
    new: str
    first: str
