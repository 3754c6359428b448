"""What the metadata of a Minari dataset may say, checked before Minari acts on it.

Minari makes the environment that `env_spec` describes, whatever module that is in, where the metadata lacks a
space; so both must be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config.limits import MAX_WIDTH
from rl_training.core.errors import DataError
from rl_training.core.facts import FactsProblem, fact, read_facts
from rl_training.core.json_text import parse_json

METADATA_FILE = "metadata.json"


@dataclass(frozen=True)
class OwnFacts:
    """What conversions of ours keep there."""

    env_id: str | None = None
    successors: str | None = None
    rows: int | None = fact(None, least=0)
    reference_source: str | None = None


@dataclass(frozen=True)
class MinariFacts:
    """The entries that matter here; Minari and others write more."""

    dataset_id: str
    minari_version: str
    data_format: str
    total_episodes: int = fact(least=0)
    total_steps: int = fact(least=0)
    observation_space: str = fact()
    action_space: str = fact()
    env_spec: str | None = None
    ref_min_score: float | None = None
    ref_max_score: float | None = None
    rl_training: OwnFacts | None = None

    @property
    def own(self) -> OwnFacts:
        return self.rl_training or OwnFacts()


@dataclass(frozen=True)
class BoxFacts:
    """A space as Minari writes it."""

    type: str
    shape: tuple[int, ...] = fact((), longest=8)
    low: tuple[Any, ...] = ()
    high: tuple[Any, ...] = ()


def read_minari_facts(directory: Path, dataset_id: str) -> MinariFacts:
    """The metadata in a dataset's `data` folder; whatever is wrong in it is one line."""
    try:
        facts = read_facts(MinariFacts, parse_json((directory / METADATA_FILE).read_bytes()), others=True)
        for name, text in (("observations", facts.observation_space), ("actions", facts.action_space)):
            _check_space(read_facts(BoxFacts, parse_json(text), others=True), name)
    except FileNotFoundError:
        raise DataError(f"{dataset_id}: has no {METADATA_FILE}") from None
    except (OSError, ValueError, FactsProblem) as problem:
        raise DataError(f"{dataset_id}: {METADATA_FILE} cannot be used: {problem}") from None
    return facts


def _check_space(space: BoxFacts, name: str) -> None:
    if space.type != "Box" or len(space.shape) != 1:
        raise FactsProblem(
            f"{name} are {space.type} {space.shape or ''}, only flat vectors (Box) are supported"
        )
    (size,) = space.shape
    if not 0 < size <= MAX_WIDTH or not len(space.low) == len(space.high) == size:
        raise FactsProblem(
            f"the space of {name} must have a bound per number, 1 to {MAX_WIDTH} of them, got shape "
            f"{space.shape} with {len(space.low)} and {len(space.high)} bounds"
        )
