"""Rows as a log holds them, before they are transitions: flags settled, checked, nothing dropped yet."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from rl_training.core.plain import Facts
from rl_training.data.columns import ColumnStore, as_tensor
from rl_training.data.data_info import DataInfo
from rl_training.data.episodes import (
    Array,
    BoolArray,
    LastRewards,
    broken_successions,
    episode_ends,
)
from rl_training.data.field_names import FLAG_FIELDS, NUMBER_FIELDS, VECTOR_FIELDS, resolve_names
from rl_training.data.offline_dataset import OPTIONAL_FIELDS, STANDARD_FIELDS, TransitionDataset
from rl_training.data.validation import (
    DataWarning,
    as_flags,
    check_finite,
    check_flat,
    check_lengths,
    check_numeric,
    check_width,
)

SHUFFLED_SHARE = 0.5
"""If more rows than this share are not followed by their successor, the log is not in time order at all."""


@dataclass(frozen=True)
class EpisodeLog:
    """Episodes one after another. `next_obs` is None where the successor of a row is simply the next row.

    At most one of `terminated` and `truncated` is set in a row, and the last row of every episode has one.
    """

    obs: Array
    actions: Array
    rewards: Array
    terminated: BoolArray
    truncated: BoolArray
    next_obs: Array | None = None
    next_actions: Array | None = None
    returns_to_go: Array | None = None
    durations: Array | None = None
    """time from a row to the next in units of the median step, where times were logged"""
    behavior_logprobs: Array | None = None
    info: DataInfo = field(default_factory=DataInfo)
    timeouts_known: bool = True
    """whether the log says where episodes were cut; if not, only the last row is marked"""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.rewards)

    @property
    def ends(self) -> BoolArray:
        """True at the last row of every episode."""
        return episode_ends(self.terminated, self.truncated)

    @property
    def complete(self) -> BoolArray:
        """Rows that are whole transitions: the successor was recorded, or does not matter."""
        if self.next_obs is not None:
            return np.ones(len(self), dtype=bool)
        return self.terminated | ~self.ends

    @classmethod
    def from_arrays(cls, values: Facts, *, info: DataInfo) -> EpisodeLog:
        """Read named arrays, under any of the accepted names, in single precision."""
        names = resolve_names(values, info.source)
        columns = {}
        for kind, name in names.items():
            value = values[name]
            array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
            if kind != "episode_ids":
                check_numeric(name, array.dtype, info.source)
            is_number = kind in VECTOR_FIELDS or kind in NUMBER_FIELDS
            columns[kind] = np.ascontiguousarray(array, dtype=np.float32) if is_number else array
        return cls.build(columns, info=info)

    @classmethod
    def build(
        cls,
        columns: Mapping[str, Array],
        *,
        info: DataInfo,
        lenient: bool = False,
        extra_notes: Sequence[str] = (),
    ) -> EpisodeLog:
        """Check columns named as in `FIELD_NAMES` and settle where episodes end, once.

        `lenient` lets NaN through, for a look at data that cannot be trained on. `extra_notes` is what the
        reader found uncertain itself.
        """
        source = info.source
        values = {
            name: column.reshape(-1) if _is_thin(name, column) else column for name, column in columns.items()
        }
        check_lengths(values, source)
        for name in VECTOR_FIELDS:
            if name in values:
                check_flat(name, values[name].shape, source)
        for of, name in (("obs", "next_obs"), ("actions", "next_actions")):
            if name in values:
                check_width(
                    name, values[name], values[of].shape[-1] if values[of].ndim > 1 else 1, source, of
                )
        for name in (*VECTOR_FIELDS, *NUMBER_FIELDS):
            if name in values and not lenient:
                check_finite(name, values[name], source)
        terminated, truncated, notes = _settle_ends(values, source)
        for note in (*extra_notes, *notes):
            warnings.warn(f"{source}: {note}", DataWarning, stacklevel=3)
        return cls(
            obs=values["obs"],
            actions=values["actions"],
            rewards=values["rewards"],
            terminated=terminated,
            truncated=truncated,
            next_obs=values.get("next_obs"),
            next_actions=values.get("next_actions"),
            returns_to_go=values.get("returns_to_go"),
            durations=values.get("durations"),
            behavior_logprobs=values.get("behavior_logprobs"),
            info=info,
            timeouts_known=bool(truncated[:-1].any()) or _ends_are_marked(values),
            notes=(*extra_notes, *notes),
        )

    def to_dataset(self) -> TransitionDataset:
        """Transitions ready to sample.

        Without recorded successors, the successor of a row is the next row of its episode. A terminal row has
        none and needs none (its own observation stands in). The last row of a timed-out episode has none and
        is dropped: the row before becomes the time-out, and the dropped reward stays part of the returns.
        """
        if self.next_obs is not None:
            columns = {"obs": self.obs, "actions": self.actions, "rewards": self.rewards}
            columns |= {"next_obs": self.next_obs, "dones": self.terminated, "truncations": self.truncated}
            return TransitionDataset.from_store(
                ColumnStore(_tensors(columns | self._optional())), info=self.info
            )
        ends, complete = self.ends, self.complete
        incomplete = np.flatnonzero(~complete)
        ends_before = incomplete[(incomplete > 0) & ~ends[incomplete - 1]] - 1
        truncated = self.truncated.copy()
        truncated[ends_before] = True
        rows = np.flatnonzero(complete).astype(np.int32 if len(self) < 2**31 else np.int64)
        flags = {"dones": self.terminated, "truncations": truncated}
        flags = {name: values[complete] if len(incomplete) else values for name, values in flags.items()}
        stored = {"obs": self.obs, "actions": self.actions, "rewards": self.rewards, **self._optional()}
        tensors = _tensors({**stored, **flags})
        tensors["next_obs"] = tensors["obs"]  # one column, looked up twice
        maps = {"next_obs": torch.from_numpy(rows + ~ends[rows])}
        if len(incomplete):
            kept = torch.from_numpy(rows)
            maps |= {name: kept for name in stored}
        last_rewards = LastRewards(
            ends_before - np.searchsorted(incomplete, ends_before), self.rewards[ends_before + 1]
        )
        store = ColumnStore(
            {name: tensors[name] for name in (*STANDARD_FIELDS, *OPTIONAL_FIELDS) if name in tensors}, maps
        )
        return TransitionDataset.from_store(
            store, last_rewards=last_rewards if len(incomplete) else None, info=self.info
        )

    def _optional(self) -> dict[str, Array]:
        optional = {"next_actions": self.next_actions, "returns_to_go": self.returns_to_go}
        optional |= {"durations": self.durations, "behavior_logprobs": self.behavior_logprobs}
        return {name: column for name, column in optional.items() if column is not None}


def _tensors(columns: Mapping[str, Array]) -> dict[str, Tensor]:
    """Columns as tensors in single precision; float columns are not copied."""
    return {name: as_tensor(column).float() for name, column in columns.items()}


_END_MARKS = frozenset({"truncated", "episode_ends", "episode_ids"})


def _is_thin(name: str, column: Array) -> bool:
    """A column of single numbers that was stored as a matrix with one column."""
    return name not in VECTOR_FIELDS and column.ndim == 2 and column.shape[1] == 1


def _ends_are_marked(columns: Mapping[str, Array]) -> bool:
    """Whether something beside the terminations says where episodes end."""
    return not _END_MARKS.isdisjoint(columns) or {"terminated", "dones"} <= columns.keys()


def _settle_ends(columns: Mapping[str, Array], source: str) -> tuple[BoolArray, BoolArray, list[str]]:
    """Which rows terminate and which only end an episode; what was uncertain about it, in plain words."""
    notes: list[str] = []
    flags = {name: as_flags(name, columns[name], source) for name in FLAG_FIELDS if name in columns}
    only_dones = "terminated" not in flags
    terminated = flags["dones"] if only_dones else flags["terminated"]
    ended = np.zeros(len(terminated), dtype=bool)
    for name in ("truncated", "episode_ends", *(() if only_dones else ("dones",))):
        if name in flags:
            ended |= flags[name]
    if "episode_ids" in columns:
        ids = columns["episode_ids"].reshape(-1)
        ended[:-1] |= ids[1:] != ids[:-1]
    marked = _ends_are_marked(columns)
    if only_dones and not marked:
        notes.append(
            "only 'dones' marks the ends of episodes: each is taken as a termination, because time-outs "
            "cannot be told apart; add 'timeouts' if some episodes were only cut"
        )
    if "next_obs" in columns:
        notes += _mark_unflagged_ends(columns["obs"], columns["next_obs"], terminated, ended)
    elif not marked and not only_dones:
        notes.append(
            "neither time-outs nor episode ids nor next observations: an episode that was cut runs into the "
            "next one; add 'timeouts' or 'episode_ids'"
        )
    ended[-1] = True
    return terminated, ended & ~terminated, notes


def _mark_unflagged_ends(obs: Array, next_obs: Array, terminated: BoolArray, ended: BoolArray) -> list[str]:
    """Mark rows whose successor is not the next row as ends (in `ended`), where no flag says so."""
    broken = broken_successions(obs, next_obs)
    unflagged = broken[~(terminated | ended)[broken]]
    if not len(unflagged):
        return []
    if len(unflagged) > SHUFFLED_SHARE * max(1, len(obs) - 1):
        return [
            "the rows are not in time order (most are not followed by their next observation), so "
            "returns-to-go, n-step returns and episode statistics are meaningless"
        ]
    ended[unflagged] = True
    return [
        f"{len(unflagged)} episode ends were not marked (row {int(unflagged[0])} is not followed by its next "
        "observation); they are taken as time-outs"
    ]
