"""The table of columns: what each is called here and in files, what it holds, where it comes from.

Logs, stores, the cache, replay, mixes, files and batches carry whatever fields are in it. A field of your own
is added with `register_field`, or offered by an installed package in the entry-point group
`rl_training.fields`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

from rl_training.core.errors import ConfigError, DataError, did_you_mean
from rl_training.core.registry import Registry
from rl_training.core.transforms import RewardTransform
from rl_training.core.types import PENALTIES, STANDARD_FIELDS

FieldColumns = dict[str, list[str]]
"""Field -> its columns of a table, in order."""


@dataclass(frozen=True)
class Discounting:
    """How the future counts: gamma per step, or per median step of time; and what failing for ever costs."""

    gamma: float
    by_time: bool = False
    failure_reward: float | None = None


@dataclass(frozen=True)
class Field:
    """A column, declared once; what is not said fits a number per row that learners ask for by name."""

    name: str
    kind: Literal["number", "vector", "flag", "id", "time"] = "number"
    names: tuple[str, ...] | None = None
    """names that it goes by in files, the first that a file has is taken; none: its own; empty: in no file"""
    written: str | None = None
    """the name in files that are written here, in the layout of D4RL; none: the first of `names`"""
    role: str | None = None
    """its key in the `columns:` of a table; none: it is mapped in `columns: fields:`"""
    in_batches: Literal["always", "if given", "if needed", "never"] = "if needed"
    """which batches hold it: all, those of data that has it, those of learners that need it, or none"""
    derive: Callable[[Any, Discounting], Any] | None = None
    """(TransitionDataset in time order, Discounting) -> the same with the field; used where a learner needs
    it and the data does not have it"""
    follows_rewards: bool = False
    """whether it is in units of the reward: derived anew, or scaled, where rewards are transformed"""
    from_info: str | None = None
    """the key of an environment's `info` that holds it after each step"""
    width: int | None = None
    """numbers of a vector that comes from `info`"""
    double: bool = False
    """whether it is read in double precision: what is only computed from and never a batch"""

    def __post_init__(self) -> None:
        if not self.name.isidentifier():
            raise ConfigError(f"the name of a field must be a word such as energy, got {self.name!r}")
        if self.from_info is not None and (self.kind == "vector") != (self.width is not None):
            raise ConfigError(
                f"field {self.name!r}: from_info needs the width of a vector, and of nothing else"
            )

    @property
    def file_names(self) -> tuple[str, ...]:
        return (self.name,) if self.names is None else self.names

    @property
    def written_name(self) -> str:
        return self.written or self.file_names[0]

    @property
    def is_numeric(self) -> bool:
        """Numbers that are learned from, in contrast to marks, ids and times."""
        return self.kind in ("number", "vector")

    @property
    def row_shape(self) -> tuple[int, ...]:
        """What one row of a batch holds, for a field that does not depend on the spaces."""
        return () if self.width is None else (self.width,)


FORMULA_COLUMNS = "formula_columns"
ACTION_MASK = "action_mask"

_BUILTIN = {
    field.name: field
    for field in (
        Field(
            "obs",
            "vector",
            names=("obs", "observations", "observation", "states", "state"),
            written="observations",
            role="observations",
            in_batches="always",
        ),
        Field("actions", "vector", names=("actions", "action"), role="actions", in_batches="always"),
        Field("rewards", names=("rewards", "reward"), role="reward", in_batches="always"),
        Field(
            "next_obs",
            "vector",
            names=("next_obs", "next_observations", "next_observation", "next_states", "next_state"),
            written="next_observations",
            role="next_observations",
            in_batches="always",
        ),
        Field(
            "terminated",
            "flag",
            names=("terminals", "terminations", "terminated", "terminal", "termination"),
            role="terminated",
            in_batches="never",
        ),
        Field(
            "truncated",
            "flag",
            names=("timeouts", "truncations", "truncated", "timeout", "truncation"),
            role="truncated",
            in_batches="never",
        ),
        # of a file: some end of an episode; of a batch: terminated
        Field("dones", "flag", names=("dones", "done"), in_batches="always"),
        Field("episode_ends", "flag", names=("episode_terminals", "episode_ends"), in_batches="never"),
        Field(
            "episode_ids",
            "id",
            names=("episode_ids", "episode_id", "episodes", "episode", "trajectory_ids", "trajectory_id"),
            role="episode",
            in_batches="never",
        ),
        Field("times", "time", names=(), role="time", in_batches="never"),
        Field("truncations", "flag", names=(), in_batches="if given"),
        Field(
            "next_actions",
            "vector",
            names=("next_actions", "next_action"),
            in_batches="if given",
            derive=lambda dataset, how: dataset.with_next_actions(),
        ),
        Field(
            "returns_to_go",
            names=("returns_to_go", "mc_returns"),
            in_batches="if given",
            derive=lambda dataset, how: dataset.with_discounted_returns_to_go(
                how.gamma, failure_reward=how.failure_reward, by_time=how.by_time
            ),
            follows_rewards=True,
        ),
        Field(
            "discounts",
            names=(),
            in_batches="if given",
            derive=lambda dataset, how: dataset.with_discounts(how.gamma, by_time=how.by_time),
        ),
        Field("episodes", names=(), derive=lambda dataset, how: dataset.with_episodes()),
        # of signals of time, where imagined trajectories begin
        Field("signal_states", "vector", names=(), derive=lambda dataset, how: dataset.with_signal_states()),
        # what formulas of rewards, costs and flags are computed from
        Field(FORMULA_COLUMNS, "vector", names=(), in_batches="never", double=True),
        # which levels of choices may be taken, 1 or 0 for each; logs have it behind their observations
        Field(ACTION_MASK, "vector", in_batches="never"),
        # what must not happen too often, a number per cost (`DataInfo.cost_names`)
        Field("costs", "vector", names=("costs",), from_info="cost", width=1),
        # what they take off the reward, where a learner keeps the two apart
        Field(PENALTIES, names=()),
        Field("durations"),  # from a row to the next, in units of the median step
        Field("days", "id", names=("days",), in_batches="never"),  # of dated rows, since 1970
        Field("operators", "id", names=("operators",), role="operator", in_batches="never"),
        Field(
            "behavior_logprobs",
            names=("behavior_logprobs", "behavior_logprob"),
            role="behavior_logprobs",
        ),
    )
}

END_FLAGS = ("terminated", "truncated", "dones", "episode_ends")
"""Flags of a log that end an episode where they are set."""

SPACE_FIELDS = ("obs", "next_obs", "actions", "next_actions")
"""Vectors whose numbers are those of the spaces."""

FIELDS: Registry[Field] = Registry("field", "rl_training.fields", {})
for _field in _BUILTIN.values():
    FIELDS.register(_field.name, _field)


def register_field(field: Field) -> None:
    """Make a field known: whatever reads, keeps or writes rows then carries it, and learners may need it."""
    if not isinstance(field, Field):
        raise DataError(f"register_field needs a Field, got {type(field).__name__}")
    for other in all_fields():
        shared = set(other.file_names) & set(field.file_names)
        if shared and other.name != field.name:
            raise ConfigError(
                f"field {field.name!r} cannot go by {sorted(shared)[0]!r} in files: {other.name!r} does"
            )
    FIELDS.register(field.name, field)


def all_fields() -> tuple[Field, ...]:
    """Every field: the built-in ones in the order of batches and files, then those of others."""
    return (*_BUILTIN.values(), *further_fields())


def further_fields() -> tuple[Field, ...]:
    """Fields that were registered or are offered by installed packages."""
    return tuple(FIELDS.get(name) for name in FIELDS.names() if name not in _BUILTIN)


def in_order(columns: Iterable[str]) -> list[str]:
    """Names of fields in the order of the table; one that nobody declared is refused, not lost."""
    given = set(columns)
    known = [field.name for field in all_fields()]
    refuse_undeclared(given - set(known), known)
    return [*STANDARD_FIELDS, *(name for name in known if name in given and name not in STANDARD_FIELDS)]


def refuse_undeclared(unknown: Iterable[str], known: Iterable[str], source: str = "") -> None:
    """A column that is given under a name which no field has would be lost without a word."""
    for name in sorted(unknown):
        where = f"{source}: " if source else ""
        raise DataError(
            f"{where}no field is called {name!r}{did_you_mean(name, list(known))}; leave it out, or declare "
            "it first (rl_training.register_field)"
        )


def named_in_files(names: Iterable[str]) -> dict[str, str]:
    """Field -> the name that it has among those of a file."""
    present = set(names)
    found = {field.name: [name for name in field.file_names if name in present] for field in all_fields()}
    return {field: accepted[0] for field, accepted in found.items() if accepted}


def resolve_names(names: Iterable[str], source: str, *, optional: Iterable[str] = ()) -> dict[str, str]:
    """Field -> the name it has in this log; without a necessary one it is refused, but for `optional`."""
    present = list(names)
    found = named_in_files(present)
    present_or_optional = {*found, *optional, *(("terminated",) if "dones" in found else ())}
    missing = [
        field for field in ("obs", "actions", "rewards", "terminated") if field not in present_or_optional
    ]
    if missing:
        wanted = ", ".join(f"{FIELDS.get(field).file_names[1]!r}" for field in missing)
        has = ", ".join(sorted(present)) or "nothing"
        raise DataError(f"{source}: missing key {wanted}; it has {has}")
    return found


def scaled_with_rewards(name: str, transform: RewardTransform, remedy: str) -> float:
    """The factor of a field in units of the reward; only a scale of the rewards can be carried over to it."""
    if not transform.is_scaling:
        raise DataError(
            f"the {name} of this dataset were given with it and do not follow from shifted or clipped "
            f"rewards; {remedy}"
        )
    return transform.scale


_DIGITS = re.compile(r"(\d+)")


def by_number(names: Sequence[str]) -> list[str]:
    """Names sorted with their numbers as numbers: obs_2 before obs_10."""
    return sorted(names, key=lambda name: [int(p) if p.isdigit() else p for p in _DIGITS.split(name)])


def matching(pattern: str, names: Sequence[str]) -> list[str]:
    """The columns that a name or a pattern stands for; none where it is neither."""
    if pattern in names:
        return [pattern]
    found = [name for name in names if fnmatchcase(name, pattern)] if any(c in pattern for c in "*?[") else []
    return by_number(found) if all(any(map(str.isdigit, name)) for name in found) else found


def expanded(pattern: str, names: Sequence[str], role: str, source: str) -> list[str]:
    """The columns that an entry of a mapping stands for, at least one."""
    found = matching(pattern, names)
    if not found:
        raise missing_column(pattern, names, source, f"columns.{role}")
    return found


def missing_column(name: str, names: Sequence[str], source: str, why: str) -> DataError:
    """A column that somebody asked for is not there."""
    hint = "; if these are several, set csv_separator" if len(names) == 1 else ""
    return DataError(
        f"{source}: no column {name!r} ({why}){did_you_mean(name, names)}; it has "
        f"{', '.join(names) or 'nothing'}{hint}"
    )
