"""What all traps share: the good files they are made of, and the list that they are put into."""

from __future__ import annotations

from abc import ABC, abstractmethod

from damage import CANARY
from opening import Check
from samples import Samples
from watch import Case

NAMED = f"{CANARY}:Env-v0"
HUGE = 10**12


class Traps(ABC):
    """Hostile files by name."""

    def __init__(self, samples: Samples) -> None:
        self.samples, self.found = samples, list[tuple[str, Case]]()
        self.set()

    @abstractmethod
    def set(self) -> None:
        """Add every trap."""

    def add(self, name: str, files: dict[str, bytes], *checks: Check, refused: bool = True) -> None:
        """One case per way to open the files; `refused` says that none of them may succeed."""
        self.found += [(name, Case(files, check, must_be_refused=refused)) for check in checks]
