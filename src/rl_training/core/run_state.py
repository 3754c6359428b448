"""What the checkpoint of a run must hold, checked before anything relies on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rl_training.core.errors import CheckpointError, UserError
from rl_training.core.facts import FactsProblem, fact, read_facts
from rl_training.core.plain import Facts

SUBTREES = ("policy", "learner", "streams", "callbacks")
"""Entries that hold tensors; those who load them check what is inside."""


TENSORS = (*SUBTREES, "replay", "collector", "exploration", "unlogged_episodes")
"""Every entry that is not looked into here."""


@dataclass(frozen=True)
class CounterFacts:
    """Where the run was."""

    global_step: int = fact(least=0)
    gradient_steps: int = fact(least=0)
    env_steps: int = fact(least=0)
    phase: int = fact(least=0)
    phase_step: int = fact(least=0)
    rounds: int = fact(least=0)
    owed_updates: int = fact(least=0)
    due_updates: int = fact(least=0)


@dataclass(frozen=True)
class ReferenceFacts:
    """The returns that fix the scale of normalised scores."""

    minimum: float
    maximum: float
    source: str


@dataclass(frozen=True)
class RunFacts:
    """Everything but tensors that a run's checkpoint holds."""

    format_version: int
    algo: str
    algo_class: str
    algo_package: str | None
    config: Facts
    reference: ReferenceFacts | None
    versions: Mapping[str, str]
    results: Facts
    schedule_steps: int = fact(least=1)
    compile: bool = fact()
    dataset: Facts = fact()
    in_python: tuple[str, ...] = fact()
    counters: CounterFacts = fact()
    online_span: int = fact(0, least=0)
    parent: Facts | None = None


def check_run_state(state: Facts, file: Path) -> None:
    """Refuse a state with a missing, unknown or wrong entry, in one line that names file and entry."""
    lines = [f"{name} must be a mapping" for name in SUBTREES if not isinstance(state.get(name, {}), Mapping)]
    try:
        read_facts(RunFacts, {key: value for key, value in state.items() if key not in TENSORS})
    except FactsProblem as problem:
        lines.append(str(problem))
    if lines:
        raise CheckpointError(
            f"checkpoint {file} is damaged: {'; '.join(lines)}; use another checkpoint of the run"
        )


@contextmanager
def restoring() -> Iterator[None]:
    """Tensors and numbers of a checkpoint that do not fit the run they describe are the file's fault."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as problem:
        text = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
        raise CheckpointError(
            f"the checkpoint's parts do not fit together ({text}); use another checkpoint of the run"
        ) from problem
