"""Policy files: what one would do at readings or along an episode, and what one that is served has done."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import numpy as np

from rl_training.core.drift import OWN_COLUMNS, training_columns
from rl_training.core.errors import UserError
from rl_training.core.spaces import level_text
from rl_training.core.types import Facts, State, number
from rl_training.serve.app import open_served
from rl_training.serve.decisions import TABLE, open_database, quoted
from rl_training.serve.sessions import Served, Sessions
from rl_training.studio.folder import Folder
from rl_training.studio.log_view import SeenLog

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
    return sessions.act({**_columns(served, values), "reset": True}).reply


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


def _columns(served: Served, values: Facts) -> State:
    """Only columns of the policy: a column may have the name of a part of a call."""
    return {name: values.get(name) for name in served.observations}


def _sessions(served: Served, inputs: Facts) -> Sessions:
    sessions = Sessions(served, "advise")
    if inputs:
        sessions.choose(inputs)
    return sessions
