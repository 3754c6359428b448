"""A log as the page shows it: what its columns seem to be, what is suspicious about it, its episodes."""

from __future__ import annotations

import threading
import warnings
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from rl_training.config.data import TABLE_KINDS
from rl_training.core.spaces import Spaces
from rl_training.core.types import Array, State
from rl_training.data.convert import DatasetLocation, read_location, source_location
from rl_training.data.episodes import episode_starts
from rl_training.data.formulas import log_with_signals
from rl_training.data.inspect import Inspection, inspect_log, overview_rows
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import DataWarning
from rl_training.data.tables.guess import guess_mapping, look_at, needs_mapping, with_levels
from rl_training.runtime.offline_data import spaces_of_log
from rl_training.serve.server import Refusal
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
