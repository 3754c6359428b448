"""A mapping to start from, for a table with column names of its own: what is taken for what, and why."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rl_training.config.data_fields import ColumnsConfig, TableFields
from rl_training.config.yaml_text import dump_yaml
from rl_training.core.errors import DataError
from rl_training.data.tables.facts import ColumnFacts, TableFacts
from rl_training.data.tables.files import files_of
from rl_training.data.tables.mapping import in_order, map_columns
from rl_training.data.tables.opening import open_table

_TOKEN = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

EPISODE_WORDS = {
    "episode",
    "run",
    "trial",
    "trajectory",
    "traj",
    "session",
    "rollout",
    "demo",
    "batch",
    "lot",
}
TIME_WORDS = {"time", "timestamp", "datetime", "date", "clock"}
TERMINATED_WORDS = {
    "terminated",
    "terminal",
    "trip",
    "tripped",
    "failure",
    "failed",
    "crash",
    "crashed",
    "abort",
}
TRUNCATED_WORDS = {"truncated", "timeout", "timeouts", "truncation"}
END_WORDS = {"done", "end", "last", "final", "finished"}
REWARD_WORDS = {"reward", "rewards", "score", "rew"}
COST_WORDS = {"cost", "loss", "penalty", "error"}
ACTION_WORDS = {
    "action",
    "actions",
    "act",
    "command",
    "cmd",
    "ctrl",
    "control",
    "setpoint",
    "output",
    "torque",
}
ACTUATOR_WORDS = {
    "valve",
    "heater",
    "pump",
    "fan",
    "throttle",
    "steering",
    "brake",
    "motor",
    "damper",
    "burner",
}
NEXT_WORDS = {"next"}

PILE = 0.02
"""Share of rows on one value from which it looks like a limit."""


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
        fields: dict[str, Any] = {"dataset_path": self.facts.source, "columns": given}
        if self.has_empty_cells:
            fields["missing_values"] = "hold"
        return dump_yaml({"algo_kwargs": fields})

    def flags(self) -> str:
        """The mapping for the command line."""
        columns = self.columns
        words = [f"--data {shlex.quote(self.facts.source)}"]
        words += [f"--obs {shlex.quote(','.join(columns.observations))}"] if columns.observations else []
        words += [f"--action {shlex.quote(','.join(columns.actions))}"] if columns.actions else []
        for role in ("reward", "episode", "time", "terminated", "truncated"):
            value = getattr(columns, role)
            words += [f"--{role} {shlex.quote(value)}"] if value else []
        words += ["--missing-values hold"] if self.has_empty_cells else []
        return " ".join(words)

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
            "flags": self.flags(),
        }


def needs_mapping(path: Path, fields: TableFields, *, kind: str | None = None) -> bool:
    """Whether the columns of a table cannot be told by their names and the given mapping."""
    table = open_table(files_of(path)[0], fields, kind=kind)
    given = fields.columns
    try:
        map_columns(table.names, given, str(path))
    except DataError:
        return not (given.observations or given.actions)
    return False


def guess_mapping(facts: TableFacts) -> Guess:
    """Take columns for what their names and values say, and ask where that is not clear."""
    left = {column.name: column for column in facts.columns}
    found: dict[str, str] = {}
    reasons: dict[str, str] = {}
    questions: list[str] = []
    for role, fits in _SINGLE_ROLES.items():
        candidates = [column for column in left.values() if fits(column)]
        if len(candidates) > 1:
            listed = ", ".join(column.name for column in candidates)
            questions.append(f"{role}: {listed} could each be it; choose one (--{role} NAME)")
        elif candidates:
            found[role] = candidates[0].name
            reasons[candidates[0].name] = _REASONS[role]
            del left[candidates[0].name]
    questions += _open_questions(left, found)
    actions = [c.name for c in left.values() if _is_number(c) and _words(c) & (ACTION_WORDS | ACTUATOR_WORDS)]
    for name in actions:
        strong = _words(left[name]) & ACTION_WORDS
        reasons[name] = (
            "action: named like a command" if strong else "action: named like an actuator; please check"
        )
        questions += _limit_questions(left[name])
    observations = [
        column.name
        for column in left.values()
        if column.name not in actions and _is_number(column) and not _is_ignored(column)
    ]
    reasons |= {name: "observation: a number that is not taken for anything else" for name in observations}
    for column in facts.columns:
        reasons.setdefault(column.name, f"ignored: {_why_ignored(column)}")
    if not actions:
        questions.append("actions: no column is named like a command; say which (--action NAME,NAME)")
    columns = ColumnsConfig.build(
        {**found, "observations": _ordered(observations), "actions": _ordered(actions)}
    )
    return Guess(facts, columns, reasons, questions)


def _words(column: ColumnFacts) -> set[str]:
    return {token.lower() for token in _TOKEN.findall(column.name)}


def _is_number(column: ColumnFacts) -> bool:
    return column.kind in ("number", "vector")


def _is_ignored(column: ColumnFacts) -> bool:
    counter = (
        column.kind == "number"
        and column.rises
        and bool(_words(column) & (TIME_WORDS | {"index", "step", "id"}))
    )
    constant = column.kind == "number" and column.distinct <= 1
    return counter or constant or bool(_words(column) & (COST_WORDS | END_WORDS | NEXT_WORDS | EPISODE_WORDS))


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


def _is_flag(words: set[str]) -> Any:
    return lambda column: column.kind == "flag" and bool(_words(column) & words)


def _is_time(column: ColumnFacts) -> bool:
    return column.kind == "time" or (
        column.kind == "number" and column.rises and bool(_words(column) & TIME_WORDS)
    )


def _is_reward(column: ColumnFacts) -> bool:
    return column.kind == "number" and bool(_words(column) & REWARD_WORDS)


_SINGLE_ROLES = {
    "episode": _is_episode,
    "time": _is_time,
    "terminated": _is_flag(TERMINATED_WORDS),
    "truncated": _is_flag(TRUNCATED_WORDS),
    "reward": _is_reward,
}
_REASONS = {
    "episode": "episode: named like one, and no value comes back",
    "time": "time: a date, or a number that rises",
    "terminated": "terminated: a flag named like an end of the task",
    "truncated": "truncated: a flag named like a cut",
    "reward": "reward: named like one",
}


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


def _limit_questions(column: ColumnFacts) -> list[str]:
    """Where commands pile up on their extremes, these are probably the bounds."""
    return [
        f"{column.name}: {share:.0%} of the rows lie exactly on {value}: probably its {side} bound "
        f"(--action-{side} {value})"
        for side, share, value in (("low", column.on_low, column.low), ("high", column.on_high, column.high))
        if share > PILE and column.distinct > 2
    ]


def _ordered(names: list[str]) -> list[str]:
    numbered = len(names) > 1 and all(any(map(str.isdigit, name)) for name in names)
    return in_order(names) if numbered else names
