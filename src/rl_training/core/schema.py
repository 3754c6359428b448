"""What a file says about itself, checked entry by entry before anything relies on it, and size limits."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from rl_training.core.errors import CheckpointError, UserError, is_out_of_memory, shown
from rl_training.core.types import Facts

MAX_BATCH = 1_000_000
MAX_ROWS = 1_000_000_000
"""Of a replay buffer, and of data that is collected."""
MAX_WIDTH = 16_384
"""Units of a hidden layer; a square layer of it takes 1 GB."""
MAX_LAYERS = 64
MAX_CRITICS = 1_000
MAX_QUANTILES = 10_000
MAX_SAMPLES = 10_000
"""Actions drawn per state, steps of a flow, and updates per collected transition."""
MAX_N_STEP = 10_000
MAX_SEEDS = 1_000
MAX_ENVS = 4_096


Schema = TypeVar("Schema")

_WORDS = {bool: "true/false", int: "an integer", float: "a finite number", str: "text", NoneType: "null"}
_PLURALS = {bool: "flags", int: "integers", float: "finite numbers", str: "texts"}


class SchemaProblem(UserError):
    """Entries of a file that cannot be; the message is one line."""


def fact(default: Any = MISSING, *, least: float | None = None, longest: int | None = None) -> Any:
    """Declare an entry: without a default it must be there; `least` bounds numbers, `longest` lists."""
    return field(default=default, metadata={"least": least, "longest": longest})


def read_facts(kind: type[Schema], values: object, *, others: bool = False) -> Schema:
    """The entries of a mapping; `others` lets entries be that nobody here reads (files of other projects)."""
    if not isinstance(values, Mapping):
        raise SchemaProblem(f"it must be a mapping, got {shown(values)}")
    lines = list(_problems(kind, values, others, ""))
    if lines:
        raise SchemaProblem("; ".join(lines))
    built: Schema = _build(kind, values)
    return built


def _problems(kind: Any, values: Mapping[object, object], others: bool, where: str) -> Iterator[str]:
    known = {each.name: each for each in fields(kind)}
    for name, entry in known.items():
        if name not in values:
            if entry.default is MISSING and entry.default_factory is MISSING:
                yield f"{where}{name} is required"
            continue
        hint = _hints(kind)[name]
        value = values[name]
        if (inner := _inner(hint)) is not None and isinstance(value, Mapping):
            yield from _problems(inner, value, others, f"{where}{name}.")
        elif not _fits(value, hint):
            yield f"{where}{name} must be {_rule(hint)}, got {shown(value)}"
        else:
            yield from _bounds(entry, value, f"{where}{name}")
    if not others:
        yield from (f"{where}{str(name)[:80]} is not a known key" for name in values if name not in known)


def _bounds(entry: Field[object], value: object, name: str) -> Iterator[str]:
    least, longest = entry.metadata.get("least"), entry.metadata.get("longest")
    if least is not None and isinstance(value, int | float) and value < least:
        yield f"{name} must be >= {least:g}, got {value!r}"
    if longest is not None and isinstance(value, Sequence) and len(value) > longest:
        yield f"{name} must have at most {longest} entries, got {len(value)}"


def _fits(value: object, hint: Any) -> bool:
    """Whether a value is of a type: strictly, but for integers among numbers and lists among tuples."""
    if hint is Any:
        return True
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, part) for part in parts)
    if is_dataclass(hint):  # one of a list; a single one was looked into before, for its own words
        return isinstance(value, Mapping) and not any(_problems(hint, value, False, ""))
    if origin is tuple:
        return isinstance(value, list | tuple) and all(_fits(item, parts[0]) for item in value)
    if origin is not None:  # a mapping
        return isinstance(value, Mapping) and all(
            isinstance(key, str) and _fits(item, parts[1]) for key, item in value.items()
        )
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
    return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond every float
        return False


def _rule(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return " or ".join(_rule(part) for part in parts)
    if origin is tuple:
        return f"a list of {_PLURALS.get(parts[0], 'values')}"
    return _WORDS.get(hint, "a mapping")


def _build(kind: Any, values: Mapping[str, object]) -> Any:
    hints, given = _hints(kind), {}
    for each in fields(kind):
        if each.name in values:
            given[each.name] = _converted(values[each.name], hints[each.name])
    return kind(**given)


def _converted(value: object, hint: Any) -> Any:
    inner = _inner(hint)
    if inner is not None and isinstance(value, Mapping):
        return _build(inner, value)
    takes_tuple = any(get_origin(part) is tuple for part in (hint, *get_args(hint)))
    if not (isinstance(value, list) and takes_tuple):
        return value
    (one,) = {*get_args(hint)} - {...} if get_origin(hint) is tuple else {None}
    return tuple(_build(one, each) for each in value) if is_dataclass(one) else tuple(value)


def _inner(hint: Any) -> Any:
    """The dataclass that an entry is made of, alone or as an alternative to null."""
    if get_origin(hint) is tuple:
        return None
    return next((part for part in (hint, *get_args(hint)) if is_dataclass(part)), None)


@cache
def _hints(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


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
    processor: str | None = None


def run_facts(state: Facts, file: Path) -> RunFacts:
    """What a run's state says; a missing, unknown or wrong entry is refused in a line that names both."""
    lines = [f"{name} must be a mapping" for name in SUBTREES if not isinstance(state.get(name, {}), Mapping)]
    try:
        found = read_facts(RunFacts, {key: value for key, value in state.items() if key not in TENSORS})
    except SchemaProblem as problem:
        lines.append(str(problem))
    if lines:
        raise CheckpointError(
            f"checkpoint {file} is damaged: {'; '.join(lines)}; use another checkpoint of the run"
        )
    return found


@contextmanager
def restoring() -> Iterator[None]:
    """Tensors and numbers of a checkpoint that do not fit the run they describe are the file's fault."""
    try:
        yield
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as problem:
        if is_out_of_memory(problem):
            raise
        text = " ".join(f"{type(problem).__name__}: {problem}".split())[:300]
        raise CheckpointError(
            f"the checkpoint's parts do not fit together ({text}); use another checkpoint of the run"
        ) from problem
