"""What the checkpoint of a run must hold, checked before anything relies on it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from rl_training.config import ConfigModel, setting
from rl_training.core.errors import CheckpointError, ConfigError, UserError
from rl_training.core.plain import Facts, State

SUBTREES = ("policy", "learner", "streams", "callbacks")
"""Entries that hold tensors; those who load them check what is inside."""


class CounterFacts(ConfigModel):
    """Where the run was."""

    global_step: int = setting(..., "steps", ge=0)
    gradient_steps: int = setting(..., "updates", ge=0)
    env_steps: int = setting(..., "steps in environments", ge=0)
    phase: int = setting(..., "number of the phase", ge=0)
    phase_step: int = setting(..., "steps of the phase", ge=0)
    rounds: int = setting(..., "rounds of all environments", ge=0)
    owed_updates: int = setting(..., "updates earned", ge=0)
    due_updates: int = setting(..., "updates of the round", ge=0)


class ReferenceFacts(ConfigModel):
    """The returns that fix the scale of normalised scores."""

    minimum: float = setting(..., "return that scores 0")
    maximum: float = setting(..., "return that scores 100")
    source: str = setting(..., "where they come from")


class RunFacts(ConfigModel):
    """Everything but tensors that code reads out of a run's checkpoint."""

    algo: str = setting(..., "algorithm")
    algo_class: str = setting(..., "its class in Python")
    algo_package: str | None = setting(..., "package that brought it")
    config: State = setting(..., "the run's config")
    reference: ReferenceFacts | None = setting(..., "reference returns")
    versions: dict[str, str] = setting(..., "versions of the libraries")
    results: State = setting(..., "last results")
    schedule_steps: int = setting(..., "steps of the schedule", ge=1)
    compile: bool = setting(..., "whether updates are compiled")
    dataset: State = setting(..., "facts about the data")
    in_python: tuple[str, ...] = setting(..., "parts that were given as objects")
    counters: CounterFacts = setting(..., "where the run was")
    online_span: int = setting(0, "online steps over which things fade", ge=0)
    parent: State | None = setting(None, "the run that was fine-tuned")


def check_run_state(state: Facts, file: Path) -> None:
    """Refuse a state with a missing or wrong entry, in one line that names file and entry."""
    known = {key: value for key, value in state.items() if key in RunFacts.model_fields}
    lines = [f"{name} must be a mapping" for name in SUBTREES if not isinstance(state.get(name, {}), Mapping)]
    try:
        RunFacts.build(known)
    except ConfigError as problem:
        lines += str(problem).splitlines()
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
