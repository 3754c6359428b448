"""What every column of an unknown table holds, and a mapping to start from, with reasons."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rl_training.config.data import TABLE_FIELDS, ColumnsConfig, DatasetSource, plain_level
from rl_training.config.yaml import dump_yaml
from rl_training.core.drift import RECOMMENDED, is_decision_log, written_by_serve
from rl_training.core.errors import DataError
from rl_training.core.types import Array
from rl_training.data.fields import by_number
from rl_training.data.reading import FEW_LEVELS, piles_up
from rl_training.data.tables.build import map_columns
from rl_training.data.tables.cells import FLAG_WORDS
from rl_training.data.tables.files import import_pyarrow
from rl_training.data.tables.read import problems_of
from rl_training.data.tables.sources import open_sources

ENOUGH_ROWS = 100_000
"""Rows looked at; the first files of a large log are enough to tell its columns."""


@dataclass(frozen=True)
class ColumnFacts:
    """One column, as far as it was looked at."""

    name: str
    kind: str
    """number, vector, flag, time, text or empty"""
    low: str
    high: str
    missing: int
    distinct: int
    changes: int
    """rows whose value differs from the row before"""
    comes_back: bool
    """whether a value appears again after another one, in the same file"""
    rises: bool
    """whether it is a number or time that mostly goes up from row to row"""
    on_low: float
    on_high: float
    """share of rows that lie exactly on the smallest and on the largest value"""
    levels: tuple[str, ...] = ()
    """its values, where they are few"""


@dataclass(frozen=True)
class TableFacts:
    """All columns, and how much was looked at."""

    source: str
    files: int
    rows_seen: int
    columns: tuple[ColumnFacts, ...]
    partial: Mapping[str, str]
    """column that not all files have -> the first file without it"""
    options: Mapping[str, object] = field(default_factory=dict)
    """how it is read, beside its columns, as dataset fields"""

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    def column(self, name: str) -> ColumnFacts:
        return next(column for column in self.columns if column.name == name)


def look_at(source: DatasetSource, *, kind: str | None = None) -> TableFacts:
    """Read the first rows of a table with types guessed column by column."""
    pa = import_pyarrow()
    tables: list[Any] = []
    labels: list[str] = []
    rows = 0
    with open_sources(source, kind=kind) as opened:
        for each in opened:
            tables.append(each.first_rows(ENOUGH_ROWS - rows))
            labels.append(each.label)
            rows += tables[-1].num_rows
            if rows >= ENOUGH_ROWS:
                break
    every = dict.fromkeys(name for table in tables for name in table.column_names)
    partial = {
        name: next(
            label for label, table in zip(labels, tables, strict=True) if name not in table.column_names
        )
        for name in every
        if not all(name in table.column_names for table in tables)
    }
    names = [name for name in every if name not in partial]
    with problems_of(labels[0], "csv"):
        joined = pa.concat_tables([table.select(names) for table in tables], promote_options="permissive")
    starts = np.cumsum([0, *(table.num_rows for table in tables[:-1])])
    facts = tuple(_facts(name, joined.column(name).combine_chunks(), starts) for name in names)
    return TableFacts(str(source.dataset_path), len(opened), rows, facts, partial, rows_options(source))


def rows_options(source: DatasetSource) -> dict[str, object]:
    """What was said about how the table is read, beside its columns, as dataset fields."""
    names = (*(name for name in TABLE_FIELDS if name != "columns"), "query", "table", "query_timeout")
    given = {name: getattr(source, name) for name in names}
    return {name: value for name, value in given.items() if value != DatasetSource.model_fields[name].default}


def _facts(name: str, column: Any, starts: Array) -> ColumnFacts:
    pa = import_pyarrow()
    kind = _kind(column)
    codes, words = (np.zeros(0), []) if pa.types.is_nested(column.type) else _codes(column)
    changed = codes[1:] != codes[:-1]
    begins = np.concatenate([np.ones(min(1, len(codes)), dtype=bool), changed])
    begins[starts[starts < len(codes)]] = True
    rows = np.flatnonzero(begins)
    pieces = np.stack([np.searchsorted(starts, rows, side="right"), codes[rows]], axis=1)
    low = high = ""
    on_low = on_high = 0.0
    rises = False
    if kind in ("number", "time"):
        values = _numbers(column)
        known = values[~np.isnan(values)]
        steps = np.diff(known)
        rises = len(steps) > 0 and float((steps > 0).mean()) > 0.9
        if len(known):
            on_low, on_high = float((known == known.min()).mean()), float((known == known.max()).mean())
            shown = [f"{known.min():g}", f"{known.max():g}"]
            if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
                ordered = sorted(str(word) for word in words)
                shown = [ordered[0], ordered[-1]]
            low, high = shown
    elif words:
        low, high = str(words[0])[:20], str(words[-1])[:20]
    return ColumnFacts(
        name=name,
        kind=kind,
        low=low,
        high=high,
        missing=int(column.null_count),
        distinct=len(words),
        changes=int(changed.sum()),
        comes_back=len(pieces) > len(np.unique(pieces, axis=0)),
        rises=rises,
        on_low=on_low,
        on_high=on_high,
        levels=_levels(words) if kind in ("number", "flag", "text") else (),
    )


def _levels(words: list[object]) -> tuple[str, ...]:
    """A few values as levels, numbers in their order."""
    known = [word for word in words if word is not None]
    if not 2 <= len(known) <= FEW_LEVELS:
        return ()
    numbers = [word for word in known if isinstance(word, int | float)]
    if len(numbers) == len(known):
        return tuple(f"{float(number):g}" for number in sorted(numbers))
    return tuple(sorted(map(str, known)))


def _kind(column: Any) -> str:
    pa = import_pyarrow()
    kind = column.type
    if pa.types.is_null(kind):
        return "empty"
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        return "vector"
    if pa.types.is_nested(kind):
        return "text"
    if pa.types.is_boolean(kind):
        return "flag"
    if pa.types.is_timestamp(kind) or pa.types.is_date(kind) or pa.types.is_time(kind):
        return "time"
    words = {
        str(value).strip().lower() for value in column.unique().slice(0, 5).to_pylist() if value is not None
    }
    if words and len(words) <= 2 and words <= FLAG_WORDS.keys():
        return "flag"
    return "number" if pa.types.is_floating(kind) or pa.types.is_integer(kind) else "text"


def _codes(column: Any) -> tuple[Array, list[object]]:
    encoded = column.dictionary_encode()
    words = encoded.dictionary.to_pylist()
    return encoded.indices.fill_null(len(words)).to_numpy(zero_copy_only=False), words


def _numbers(column: Any) -> Array:
    pa = import_pyarrow()
    if not (pa.types.is_floating(column.type) or pa.types.is_integer(column.type)):
        column = column.cast(
            pa.timestamp("us") if not pa.types.is_time(column.type) else pa.time64("us")
        ).cast(pa.int64())
    values: Array = column.to_numpy(zero_copy_only=False).astype(np.float64)
    return values


_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")


def _set_of(words: str) -> frozenset[str]:
    return frozenset(words.split())


EPISODE_WORDS = _set_of("episode run trial trajectory traj session rollout demo batch lot")
TIME_WORDS = _set_of("time timestamp datetime date clock")
TERMINATED_WORDS = _set_of("terminated terminal trip tripped failure failed crash crashed abort")
TRUNCATED_WORDS = _set_of("truncated timeout timeouts truncation")
END_WORDS = _set_of("done end last final finished")
REWARD_WORDS = _set_of("reward rewards score rew")
OPERATOR_WORDS = _set_of("operator shift crew driver staff who")
COST_WORDS = _set_of("cost loss penalty error")
ACTION_WORDS = _set_of("action actions act command cmd ctrl control setpoint output torque")
ACTUATOR_WORDS = _set_of("valve heater pump fan throttle steering brake motor damper burner")


@dataclass(frozen=True)
class Guess:
    """What the columns seem to be, in words, and as a mapping."""

    facts: TableFacts
    columns: ColumnsConfig
    reasons: dict[str, str]
    """column -> what it is taken for and why"""
    questions: list[str]
    """what only the owner of the log can answer"""

    def yaml(self) -> str:
        """The mapping for a config."""
        given = {key: value for key, value in self.columns.to_dict().items() if value}
        fields = {"dataset_path": self.facts.source, **self.facts.options, "columns": given}
        if self.has_empty_cells:
            fields.setdefault("missing_values", self.empty_cells)
        return dump_yaml({"algo_kwargs": fields})

    @property
    def data_flag(self) -> str:
        return f"--data {shlex.quote(self.facts.source)}"

    def flags(self) -> str:
        """The mapping for the command line."""
        columns = self.columns
        words = [_option(name, value) for name, value in self.facts.options.items()]
        words += [f"--obs {shlex.quote(','.join(columns.observations))}"] if columns.observations else []
        actions = [with_levels(name, columns.levels.get(name, ())) for name in columns.actions]
        words += [f"--action {shlex.quote(','.join(actions))}"] if actions else []
        for role in ("reward", *(name for name in _SINGLE_ROLES if name != "reward")):
            value = getattr(columns, role)
            words += [f"--{role} {shlex.quote(value)}"] if value else []
        left = self.has_empty_cells and "missing_values" not in self.facts.options
        words += [f"--missing-values {self.empty_cells}"] if left else []
        return " ".join(words)

    @property
    def empty_cells(self) -> str:
        """What to do with them: what was done in a step that nobody told of must not be made up."""
        return "drop" if is_decision_log(self.facts.names) else "hold"

    @property
    def has_empty_cells(self) -> bool:
        columns = self.columns
        used = [*columns.observations, *columns.actions, *([columns.reward] if columns.reward else [])]
        return any(self.facts.column(name).missing for name in used)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "source": self.facts.source,
            "files": self.facts.files,
            "rows_seen": self.facts.rows_seen,
            "columns": [
                dict(vars(column)) | {"taken_for": self.reasons.get(column.name)}
                for column in self.facts.columns
            ],
            "mapping": {key: value for key, value in self.columns.to_dict().items() if value},
            "questions": self.questions,
            "flags": f"{self.data_flag} {self.flags()}",
        }


def _option(name: str, value: object) -> str:
    """A dataset field as the command line takes it."""
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--{flag}" if value else f"--no-{flag}"
    return f"--{flag} {shlex.quote(str(value))}"


def with_levels(name: str, levels: Sequence[object]) -> str:
    """An action column as `--action` takes it."""
    return f"{name}{{{','.join(map(str, levels))}}}" if levels else name


def needs_mapping(source: DatasetSource, *, kind: str | None = None) -> bool:
    """Whether the columns of a table cannot be told by their names and the given mapping."""
    with open_sources(source, kind=kind) as opened:
        names = opened[0].names
    given = source.columns
    try:
        map_columns(names, source, str(source.dataset_path))
    except DataError:
        return not (given.observations or given.actions)
    return False


def guess_mapping(facts: TableFacts) -> Guess:
    """Take columns for what their names and values say, and ask where that is not clear."""
    if is_decision_log(facts.names):
        return _mapping_of_decisions(facts)
    left = {column.name: column for column in facts.columns}
    found: dict[str, str] = {}
    reasons: dict[str, str] = {}
    questions = [
        f"{name}: not in every file ({file} has no such column), so it is left out (--missing-columns empty "
        "takes its cells as empty)"
        for name, file in facts.partial.items()
    ]
    for role, (fits, reason) in _SINGLE_ROLES.items():
        candidates = [column for column in left.values() if fits(column)]
        if len(candidates) > 1:
            listed = ", ".join(column.name for column in candidates)
            questions.append(f"{role}: {listed} could each be it; choose one (--{role} NAME)")
        elif candidates:
            found[role] = candidates[0].name
            reasons[candidates[0].name] = f"{role}: {reason}"
            del left[candidates[0].name]
    questions += [*_narrow(facts), *_open_questions(left, found)]
    actions = [c.name for c in left.values() if _is_number(c) and _words(c) & (ACTION_WORDS | ACTUATOR_WORDS)]
    for name in actions:
        strong = _words(left[name]) & ACTION_WORDS
        reasons[name] = (
            "action: named like a command" if strong else "action: named like an actuator; please check"
        )
        questions += _limit_questions(left[name], facts.rows_seen)
        if left[name].levels:
            questions.append(
                f"{name}: takes only {', '.join(left[name].levels)}; if it is a choice and no number, write "
                f"{with_levels(name, left[name].levels)}"
            )
    choices = [c.name for c in left.values() if _is_choice(c)]
    for name in choices:
        reasons[name] = f"action: a choice among {', '.join(left[name].levels)}, by its name; please check"
    questions += [
        f"{c.name}: text with {len(c.levels)} values; if it is decided by the controller, it is an action: "
        f"{with_levels(c.name, c.levels)}"
        for c in left.values()
        if c.kind == "text" and c.levels and c.name not in choices and not _words(c) & EPISODE_WORDS
    ]
    observations = [
        column.name
        for column in left.values()
        if column.name not in actions and _is_number(column) and not _is_ignored(column)
    ]
    reasons |= {name: "observation: a number that is not taken for anything else" for name in observations}
    for column in facts.columns:
        reasons.setdefault(column.name, f"ignored: {_why_ignored(column)}")
    actions += choices
    if not actions:
        questions.append("actions: no column is named like a command; say which (--action NAME,NAME)")
    columns = ColumnsConfig.build(
        {
            **found,
            "observations": _ordered(observations),
            "actions": _ordered(actions),
            "levels": {name: [plain_level(each) for each in left[name].levels] for name in choices},
        }
    )
    return Guess(facts, columns, reasons, questions)


def _mapping_of_decisions(facts: TableFacts) -> Guess:
    """A log of `rl-training serve`: its columns are known, except the reward, which it never sees."""
    actions = [name for name in facts.names if RECOMMENDED + name in facts.names]
    observations = [name for name in facts.names if name not in actions and not written_by_serve(name)]
    reasons = {name: "ignored: written by serve" for name in facts.names if written_by_serve(name)}
    reasons |= {name: "observation: what the policy was asked with" for name in observations}
    reasons |= {name: "action: what was really done" for name in actions}
    reasons |= {"episode": "episode: a session until its reset", "at": "time: when it was asked"}
    levels = {
        name: [plain_level(each) for each in facts.column(name).levels]
        for name in actions
        if facts.column(name).kind in ("text", "flag")
    }
    columns = ColumnsConfig.build(
        {
            **{"observations": observations, "actions": actions, "levels": levels},
            **{"episode": "episode", "time": "at"},
        }
    )
    question = 'reward: serve sees none; say what is wanted as a formula (--reward "-(next(T) - 60)**2")'
    return Guess(facts, columns, reasons, [question])


def _words(column: ColumnFacts) -> set[str]:
    return {token.lower() for token in _TOKEN.findall(column.name)}


def _is_number(column: ColumnFacts) -> bool:
    return column.kind in ("number", "vector")


def _is_choice(column: ColumnFacts) -> bool:
    """A few words under the name of a command or an actuator."""
    named = bool(_words(column) & (ACTION_WORDS | ACTUATOR_WORDS))
    return named and column.kind in ("flag", "text") and bool(column.levels)


def _is_ignored(column: ColumnFacts) -> bool:
    counter = (
        column.kind == "number"
        and column.rises
        and bool(_words(column) & (TIME_WORDS | {"index", "step", "id"}))
    )
    constant = column.kind == "number" and column.distinct <= 1
    return counter or constant or bool(_words(column) & (COST_WORDS | END_WORDS | EPISODE_WORDS | {"next"}))


def _why_ignored(column: ColumnFacts) -> str:
    if column.kind == "empty":
        return "it is empty"
    if column.distinct <= 1 and column.kind != "vector":
        return "it never changes"
    return {"text": "text", "flag": "a flag without a known name", "time": "another time"}.get(
        column.kind, "a counter, or a name that is not clear"
    )


def _is_episode(column: ColumnFacts) -> bool:
    named = bool(_words(column) & EPISODE_WORDS)
    return (
        named and column.kind in ("text", "number", "flag") and column.changes > 0 and not column.comes_back
    )


def _is_flag(words: frozenset[str]) -> Callable[[ColumnFacts], bool]:
    return lambda column: column.kind == "flag" and bool(_words(column) & words)


def _is_time(column: ColumnFacts) -> bool:
    return column.kind == "time" or (
        column.kind == "number" and column.rises and bool(_words(column) & TIME_WORDS)
    )


def _is_operator(column: ColumnFacts) -> bool:
    return bool(column.levels) and bool(_words(column) & OPERATOR_WORDS)


def _is_reward(column: ColumnFacts) -> bool:
    return column.kind == "number" and bool(_words(column) & REWARD_WORDS)


_SINGLE_ROLES = {
    "episode": (_is_episode, "named like one, and no value comes back"),
    "time": (_is_time, "a date, or a number that rises"),
    "terminated": (_is_flag(TERMINATED_WORDS), "a flag named like an end of the task"),
    "truncated": (_is_flag(TRUNCATED_WORDS), "a flag named like a cut"),
    "reward": (_is_reward, "named like one"),
    "operator": (_is_operator, "named like who acts, with a few values"),
}
"""Role of one column -> whether a column fits it, and why it does."""


TAG_WORDS = _set_of("tag tags tagname point signal sensor variable item name")
VALUE_WORDS = _set_of("value val reading wert")


def _narrow(facts: TableFacts) -> list[str]:
    """Whether a table has a row per reading, with the name of what was read in a column."""
    if len(facts.columns) > 6 or "pivot" in facts.options:
        return []
    tags = [c for c in facts.columns if c.kind == "text" and _words(c) & TAG_WORDS and c.distinct > 1]
    values = [c for c in facts.columns if c.kind == "number" and _words(c) & VALUE_WORDS]
    times = [column for column in facts.columns if column.kind == "time" or _words(column) & TIME_WORDS]
    if len(tags) != 1 or len(values) != 1 or not times:
        return []
    return [
        f"{tags[0].name} and {values[0].name}: a row per reading? A column per tag is made by --pivot "
        f"{tags[0].name}={values[0].name} --time {times[0].name} (and --pivot-step 1min)"
    ]


def _open_questions(left: dict[str, ColumnFacts], found: dict[str, str]) -> list[str]:
    questions = []
    for column in left.values():
        words = _words(column)
        if column.kind == "flag" and words & END_WORDS:
            questions.append(
                f"{column.name}: marks ends, but of the task (--terminated {column.name}) or of the "
                f"recording (--truncated {column.name})?"
            )
        elif "reward" not in found and column.kind == "number" and words & COST_WORDS:
            questions.append(
                f"{column.name}: looks like a cost; a reward is better when it is higher, so negate it first "
                "(or set nothing and train bc)"
            )
        elif words & EPISODE_WORDS and column.comes_back:
            questions.append(f"{column.name}: named like an episode, but its values come back; not taken")
    if "episode" not in found:
        questions.append(
            "episode: no column tells episodes apart; each file is then one episode (or set --max-gap with "
            "--time)"
        )
    if "reward" not in found:
        questions.append("reward: none found; without one only bc can be trained (--reward NAME)")
    return questions


def _limit_questions(column: ColumnFacts, rows: int) -> list[str]:
    """Where commands pile up on their extremes, these are probably the bounds."""
    return [
        f"{column.name}: {share:.0%} of the rows lie exactly on {value}: probably its {side} bound "
        f"(--action-{side} {value})"
        for side, share, value in (("low", column.on_low, column.low), ("high", column.on_high, column.high))
        if piles_up(share, rows - column.missing) and column.distinct > 2
    ]


def _ordered(names: list[str]) -> list[str]:
    numbered = len(names) > 1 and all(any(map(str.isdigit, name)) for name in names)
    return by_number(names) if numbered else names
