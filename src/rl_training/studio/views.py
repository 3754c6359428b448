"""What the page shows: a log with its columns, findings and episodes; what a policy does at readings."""

from __future__ import annotations

import sqlite3
import threading
import warnings
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rl_training.config.data import TABLE_KINDS
from rl_training.core.drift import OWN_COLUMNS, training_columns
from rl_training.core.errors import UserError
from rl_training.core.spaces import Spaces, level_text
from rl_training.core.types import Array, Facts, State, number
from rl_training.data.convert import DatasetLocation, read_location, source_location
from rl_training.data.episodes import episode_starts
from rl_training.data.formulas import log_with_signals
from rl_training.data.inspect import Inspection, inspect_log, overview_rows
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import DataWarning
from rl_training.data.tables.guess import guess_mapping, look_at, needs_mapping, with_levels
from rl_training.runtime.offline_data import spaces_of_log
from rl_training.serve.app import open_served
from rl_training.serve.decisions import TABLE, open_database, quoted
from rl_training.serve.server import Refusal
from rl_training.serve.sessions import Served, Sessions
from rl_training.studio.folder import Folder, log_address
from rl_training.studio.orders import LogChoice

LARGEST = 512 * 2**20
"""Bytes of a log that is looked at here; larger ones are for the command line."""
ROWS_DRAWN = 400
EPISODES_LISTED = 500
ROLES = ("reward", "episode", "time", "terminated", "truncated", "operator")


@dataclass(frozen=True)
class SeenLog:
    """A log that was read, and what was found in it."""

    log: EpisodeLog
    found: Inspection

    @property
    def observations(self) -> tuple[str, ...]:
        return self._names("obs", self.log.info.seen_features.observations, self.log.obs)

    @property
    def actions(self) -> tuple[str, ...]:
        return self._names("action", self.log.info.seen_features.actions, self.log.actions)

    @staticmethod  # where nothing is named, as a service names it
    def _names(kind: str, named: tuple[str, ...], values: Array) -> tuple[str, ...]:
        width = values.shape[1] if values.ndim > 1 else 1
        return named if len(named) == width else tuple(f"{kind}_{index}" for index in range(width))

    def episode(self, index: int) -> slice:
        """The rows of one episode."""
        starts = episode_starts(self.log.ends)
        if not 0 <= index < len(starts):
            raise Refusal(404, f"the log has {len(starts)} episodes, numbered from 0, got {index}")
        end = starts[index + 1] if index + 1 < len(starts) else len(self.log)
        return slice(int(starts[index]), int(end))

    def told(self) -> State:
        """Findings, and a list of episodes."""
        found, advice = self.found, self.found.advice
        low, high, obs_low, obs_high = (
            each.tolist() for each in (found.actions.low, found.actions.high, found.obs.low, found.obs.high)
        )
        sentences = [*(advice.sentences if advice is not None else ()), *found.warnings]
        return {
            "overview": overview_rows(found),
            "findings": sentences,
            "advised_observations": None if advice is None else advice.observations,
            "episodes": len(found.lengths),
            "lengths": found.lengths[:EPISODES_LISTED].tolist(),
            "returns": found.returns[:EPISODES_LISTED].tolist(),
            "observations": self.observations,
            "actions": self.actions,
            "action_range": [low, high],
            "observation_range": [obs_low, obs_high],
            "has_rewards": self.log.info.rewards_known,
        }

    def episode_told(self, index: int) -> State:
        """The columns of one episode, thinned out where it is long."""
        rows = self.episode(index)
        step = max(1, -(-(rows.stop - rows.start) // ROWS_DRAWN))
        thin = slice(rows.start, rows.stop, step)
        kinds = [
            *(
                (name, "observation", column)
                for name, column in zip(self.observations, _columns(self.log.obs, thin), strict=True)
            ),
            *(
                (name, "action", column)
                for name, column in zip(self.actions, _columns(self.log.actions, thin), strict=True)
            ),
        ]
        if self.log.info.rewards_known:
            kinds.append(("reward", "reward", self.log.rewards[thin]))
        return {
            "index": index,
            "steps": rows.stop - rows.start,
            "each": step,
            "columns": [
                {"name": name, "kind": kind, "values": values.tolist()} for name, kind, values in kinds
            ],
        }


def _columns(values: Array, rows: slice) -> Array:
    taken = values[rows]
    return (taken if taken.ndim > 1 else taken[:, None]).T


def _bounds(log: EpisodeLog, choice: LogChoice) -> Spaces | None:
    """The bounds that were given, where both were."""
    if not (choice.action_low and choice.action_high):
        return None
    return spaces_of_log(log, {"action_low": choice.action_low, "action_high": choice.action_high})


class LogReader:
    """Reads logs one at a time, and keeps the newest for the next look."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.known: tuple[object, SeenLog] | None = None

    def place(self, name: str) -> tuple[Path, DatasetLocation]:
        path = self.folder.existing(name)
        size = path.stat().st_size
        if not path.is_file() or size > LARGEST:
            raise Refusal(
                413, f"{path.name} is no file of up to {LARGEST // 2**20} MB: use rl-training data inspect"
            )
        return path, source_location(log_address(str(path)))

    def guess(self, choice: LogChoice) -> State:
        """What the columns of a table seem to be; nothing of a log that says it itself."""
        _, place = self.place(choice.file)
        if place.kind not in TABLE_KINDS:
            return {"columns": [], "questions": [], "clear": True}
        source, kind = place.source({}), None if place.kind == "table" else place.kind
        with self.lock, warnings.catch_warnings():
            warnings.simplefilter("ignore", DataWarning)
            guess = guess_mapping(look_at(source, kind=kind))
            clear = not needs_mapping(source, kind=kind)
        roles = {
            **dict.fromkeys(guess.columns.observations, "observation"),
            **dict.fromkeys(guess.columns.actions, "action"),
        }
        roles |= {name: role for role in ROLES if (name := getattr(guess.columns, role))}
        roles |= dict.fromkeys(guess.columns.levels, "choice")
        columns = [
            {
                **{name: getattr(column, name) for name in ("name", "kind", "low", "high", "missing")},
                "role": roles.get(column.name, "unused"),
                "reason": guess.reasons[column.name],
                "as_choice": with_levels(column.name, column.levels) if column.levels else None,
                "piles": [column.on_low, column.on_high],
            }
            for column in guess.facts.columns
        ]
        return {
            "columns": columns,
            "questions": guess.questions,
            "clear": clear,
            "missing_values": guess.empty_cells if guess.has_empty_cells else None,
        }

    def look(self, choice: LogChoice) -> SeenLog:
        """Read the whole log and say what is in it."""
        path, place = self.place(choice.file)
        parts = [path, path.with_name(f"{path.name}-wal")]  # what a database has not yet moved into its file
        key = (choice, *((each.stat().st_mtime_ns, each.stat().st_size) for each in parts if each.exists()))
        with self.lock, warnings.catch_warnings():
            if self.known is not None and self.known[0] == key:
                return self.known[1]
            warnings.simplefilter("ignore", DataWarning)  # they are part of what is found
            log = read_location(place, exact=True, lenient=True, fields=choice.fields)
            with np.errstate(all="ignore"):
                found = inspect_log(log_with_signals(log, lenient=True), _bounds(log, choice))
            seen = SeenLog(log, found)
            self.known = (key, seen)
        return seen


# ---- policy files: what one would do at readings or along an episode, and what one that is served has done


MOST_STEPS = 2_000
"""Steps of an episode that are asked about."""
LAST_DECISIONS = 12
KEPT = 4
"""Policies that stay open."""


class OpenPolicies:
    """Policies by their names in the directory; a file that has changed is opened again."""

    def __init__(self, folder: Folder) -> None:
        self.folder = folder
        self.lock = threading.Lock()
        self.known: dict[tuple[Path, int, int], Served] = {}

    def served(self, name: object) -> Served:
        path = self.folder.existing(name)
        found = path.stat()
        key = (path, found.st_mtime_ns, found.st_size)
        with self.lock:
            if key not in self.known:
                while len(self.known) >= KEPT:
                    del self.known[next(iter(self.known))]
                self.known[key] = open_served(path)
            return self.known[key]


def policy_told(served: Served, seen: SeenLog | None) -> State:
    """Columns with the ranges of sliders, actions with their bounds, inputs such as the dial."""
    known = training_columns(served.policy.metadata["training"]["data"])
    ranges = {name: _around(list(shares.edges)) for name, shares in known.items()}
    if seen is not None:
        low, high = seen.found.obs.low, seen.found.obs.high
        if len(low) == len(seen.observations):  # signals are more than what is seen
            ranges |= {name: (float(low[i]), float(high[i])) for i, name in enumerate(seen.observations)}
    _, _, low, high = served.policy.spaces.scale
    choices = served.policy.spaces.choices or (None,) * len(served.actions)
    units = served.policy.features.units
    return {
        "observations": [
            {
                "name": name,
                "unit": units.get(name, ""),
                "range": ranges.get(name, (-1.0, 1.0)),
                "known": name in ranges,
            }
            for name in served.observations
        ],
        "actions": [
            {
                "name": name,
                "unit": units.get(name, ""),
                "range": [float(low[index]), float(high[index])] if choice is None else None,
                "levels": None if choice is None else [level_text(each) for each in choice.levels],
            }
            for index, (name, choice) in enumerate(zip(served.actions, choices, strict=True))
        ],
        "inputs": [each.to_dict() for each in served.policy.inputs],
        "remembers": served.policy.memory is not None,
        "guarded": served.policy.guard_facts is not None,
        "digest": served.digest,
        "algo": served.policy.metadata["algo"],
    }


def _around(edges: list[float]) -> tuple[float, float]:
    """A little more than the first to the last tenth."""
    if not edges:
        return -1.0, 1.0
    span = 0.2 * (edges[-1] - edges[0]) or 1.0
    return edges[0] - span, edges[-1] + span


def asked(served: Served, values: Facts, inputs: Facts) -> State:
    """What the policy does at these readings, an episode having just begun."""
    sessions = _sessions(served, inputs)
    return sessions.act({**_readings(served, values), "reset": True}).reply


def predict_words(path: str, served: Served, given: Facts, inputs: Facts) -> list[str]:
    """The command that asks the same of the same file."""
    values = [number(given.get(name)) or 0.0 for name in served.observations]
    dial = number(inputs.get("dial"))
    turned = [] if dial is None else [f"--dial={dial:g}"]
    return ["predict", f"--checkpoint={path}", f"--obs={', '.join(f'{each:g}' for each in values)}", *turned]


def along_episode(served: Served, seen: SeenLog, index: int, inputs: Facts) -> State:
    """Logged and proposed actions of every step; the policy is told what was really done before each."""
    missing = [name for name in served.observations if name not in seen.observations]
    if missing:
        raise UserError(
            f"the log has no column {missing[0]!r}, which the policy observes; choose its own log"
        )
    rows = seen.episode(index)
    rows = slice(rows.start, min(rows.stop, rows.start + MOST_STEPS))
    order = [seen.observations.index(name) for name in served.observations]
    obs = seen.log.obs[rows].reshape(rows.stop - rows.start, -1)[:, order]
    actions = seen.log.actions[rows].reshape(len(obs), -1)
    if actions.shape[1] != len(served.actions):
        raise UserError(
            f"the log has {actions.shape[1]} actions, the policy {len(served.actions)}; choose its own log"
        )
    sessions = _sessions(served, inputs)
    steps, applied = [], None
    for row, done in zip(obs.tolist(), actions, strict=True):
        call = {**dict(zip(served.observations, row, strict=True)), "reset": applied is None}
        reply = sessions.act(call | ({} if applied is None else {"applied": applied})).reply
        applied = served.named(np.asarray(done, dtype=np.float32))
        steps.append(
            {"values": row, "logged": applied, "proposed": reply["action"], "flagged": reply["flagged"]}
        )
    return {"index": index, "observations": served.observations, "steps": steps}


def decisions_told(place: Path, served: Served) -> State:
    """Counts and the newest rows of a decision log, and a call to begin with."""
    known = training_columns(served.policy.metadata["training"]["data"])
    middles = {name: shares.edges[len(shares.edges) // 2] for name, shares in known.items() if shares.edges}
    example = {"session": "machine-1", **{name: middles.get(name, 0.0) for name in served.observations}}
    told: State = {"count": 0, "flagged": 0, "header": [], "rows": [], "example": example}
    if not place.is_file():
        return told
    try:
        with closing(open_database(str(place))) as database:
            if not (names := database.columns()):  # the file is there a moment before its table
                return told
            header = [
                "at",
                "session",
                "step",
                *(name for name in names if name not in OWN_COLUMNS),
                "flagged",
            ]
            ((count, flagged),) = database.rows(f"select count(*), sum(flagged) from {TABLE}")
            listed = ", ".join(map(quoted, header))
            rows = database.rows(f"select {listed} from {TABLE} order by at desc limit {LAST_DECISIONS}")
    except sqlite3.Error as problem:
        raise UserError(f"{place.name} cannot be read: {problem}") from problem
    return {**told, "count": count, "flagged": flagged or 0, "header": header, "rows": list(map(list, rows))}


def _readings(served: Served, values: Facts) -> State:
    """Only columns of the policy: a column may have the name of a part of a call."""
    return {name: values.get(name) for name in served.observations}


def _sessions(served: Served, inputs: Facts) -> Sessions:
    sessions = Sessions(served, "advise")
    if inputs:
        sessions.choose(inputs)
    return sessions
