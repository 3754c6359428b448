"""Rows as a log holds them, before they are transitions: flags settled, checked, nothing dropped yet."""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from torch import Tensor

from rl_training.core.errors import DataError
from rl_training.core.files import reason
from rl_training.core.files import replacing as replacing_file
from rl_training.core.types import Array, Facts
from rl_training.data.episodes import BoolArray, broken_successions, episode_ends
from rl_training.data.fields import (
    ACTION_MASK,
    END_FLAGS,
    FIELDS,
    all_fields,
    refuse_undeclared,
    resolve_names,
)
from rl_training.data.info import DataInfo
from rl_training.data.reading import (
    DataWarning,
    as_flags,
    check_finite,
    check_lengths,
    check_numeric,
    check_shape,
    check_width,
)

MASKS_ALONE = "action_mask cannot stand beside formulas over time, history or rate: leave one of them out"

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
    further: Mapping[str, Array] = field(default_factory=dict)
    """every other field that the log has, by name"""
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

    @property
    def columns(self) -> dict[str, Array]:
        """The fields that a file stores."""
        stored = {"obs": self.obs, "actions": self.actions, "rewards": self.rewards}
        stored["terminated"] = self.terminated
        if self.timeouts_known:
            stored["truncated"] = self.truncated
        if self.next_obs is not None:
            stored["next_obs"] = self.next_obs
        return stored | dict(self.further)

    @property
    def written_columns(self) -> dict[str, Array]:
        """The same under their names in files."""
        return {FIELDS.get(name).written_name: values for name, values in self.columns.items()}

    @classmethod
    def from_columns(
        cls, columns: Mapping[str, Array], info: DataInfo, timeouts_known: bool, notes: Sequence[str]
    ) -> EpisodeLog:
        """Columns that are settled: both flags, and every other field under its own name."""
        own = ("obs", "actions", "rewards", "terminated", "truncated", "next_obs")
        return cls(
            **{name: columns[name] for name in own if name in columns},
            further={name: values for name, values in columns.items() if name not in own},
            info=info,
            timeouts_known=timeouts_known,
            notes=tuple(notes),
        )

    @classmethod
    def from_arrays(cls, values: Facts, *, info: DataInfo) -> EpisodeLog:
        """Read named arrays, under any of the accepted names, in single precision."""
        known = [name for field in all_fields() for name in field.file_names]
        refuse_undeclared(values.keys() - set(known), known, info.source)
        columns = {}
        for field_name, name in resolve_names(values, info.source).items():
            value = values[name]
            array = value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
            if field_name != "episode_ids":
                check_numeric(name, array.dtype, info.source)
            numeric = FIELDS.get(field_name).is_numeric
            columns[field_name] = np.ascontiguousarray(array, dtype=np.float32) if numeric else array
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
        """Check columns named as in the table of fields and settle where episodes end, once.

        `lenient` lets NaN through, for a look at data that cannot be trained on. `extra_notes` is what the
        reader found uncertain itself.
        """
        source = info.source
        refuse_undeclared(columns.keys() - set(FIELDS.names()), FIELDS.names(), source)
        vectors = {name for name in columns if FIELDS.get(name).kind == "vector"}
        values = {
            # a column of single numbers may be stored as a matrix with one column
            name: column.reshape(-1) if name not in vectors and column.shape[1:] == (1,) else column
            for name, column in columns.items()
        }
        if "costs" in values:
            if values["costs"].ndim == 1:
                values["costs"] = values["costs"][:, None]
            info.named_costs(values["costs"].shape[1])
        check_lengths(values, source)
        for name, column in values.items():
            check_shape(name, column.shape, source, vector=name in vectors)
        for of, name in (("obs", "next_obs"), ("actions", "next_actions")):
            if name in values:
                width = values[of].shape[-1] if values[of].ndim > 1 else 1
                check_width(name, values[name], width, source, of)
        for name in values:
            if FIELDS.get(name).is_numeric and not lenient:
                check_finite(name, values[name], source)
            elif FIELDS.get(name).kind == "flag" and name not in END_FLAGS:
                values[name] = as_flags(name, values[name], source)
        terminated, truncated, notes = _settle_ends(values, source)
        for note in (*extra_notes, *notes):
            warnings.warn(f"{source}: {note}", DataWarning, stacklevel=3)
        known = bool(truncated[:-1].any()) or _ends_are_marked(values)
        settled = {
            name: column
            for name, column in values.items()
            if name not in (*END_FLAGS, "episode_ids", "times")
        }
        settled |= {"terminated": terminated, "truncated": truncated}
        settled, info = _with_mask(settled, info)
        return cls.from_columns(settled, info, known, (*extra_notes, *notes))


def _with_mask(columns: dict[str, Array], info: DataInfo) -> tuple[dict[str, Array], DataInfo]:
    """The columns with the mask of actions behind the observations, where whoever acts has to see it.

    After the last row of an episode no mask is known: there every level may be taken.
    """
    mask = columns.pop(ACTION_MASK, None)
    if mask is None:
        return columns, info
    width, sizes = mask.shape[1], [len(each.levels) for each in info.choices if each is not None]
    if info.signals is not None:
        raise DataError(f"{info.source}: {MASKS_ALONE}")
    if sum(sizes) not in (0, width):
        raise DataError(
            f"{info.source}: {ACTION_MASK} must have {sum(sizes)} numbers, one per level of each choice, "
            f"got {width}"
        )
    if not np.isin(mask, (0.0, 1.0)).all():
        row = int(np.flatnonzero(~np.isin(mask, (0.0, 1.0)).all(axis=1))[0])
        raise DataError(f"{info.source}: {ACTION_MASK} must be 1 or 0, row {row} has {mask[row].tolist()}")
    obs = columns["obs"].reshape(len(mask), -1)
    names = info.observation_names
    if names is not None and len(names) == obs.shape[1]:
        names = (*names, *(f"{ACTION_MASK}_{index}" for index in range(width)))
    if "next_obs" in columns:
        following = np.ones_like(mask)
        inside = np.flatnonzero(~episode_ends(columns["terminated"], columns["truncated"]))
        following[inside] = mask[inside + 1]
        next_obs = columns["next_obs"].reshape(len(mask), -1)
        columns["next_obs"] = np.concatenate([next_obs, following], axis=1, dtype=np.float32)
    columns["obs"] = np.concatenate([obs, mask], axis=1, dtype=np.float32)
    return columns, replace(info, observation_names=names, masked=True)


_END_MARKS = frozenset({"truncated", "episode_ends", "episode_ids"})


def _ends_are_marked(columns: Mapping[str, Array]) -> bool:
    """Whether something beside the terminations says where episodes end."""
    return not _END_MARKS.isdisjoint(columns) or {"terminated", "dones"} <= columns.keys()


def _settle_ends(columns: Mapping[str, Array], source: str) -> tuple[BoolArray, BoolArray, list[str]]:
    """Which rows terminate and which only end an episode; what was uncertain about it, in plain words."""
    notes: list[str] = []
    flags = {name: as_flags(name, columns[name], source) for name in END_FLAGS if name in columns}
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


HDF5_OVERHEAD = 1 << 16


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, file or directory, that takes its place once it is complete."""
    try:
        with replacing_file(path) as temporary:
            yield temporary
    except (OSError, RuntimeError) as problem:  # h5py reports a full disk either way
        text = reason(problem) if isinstance(problem, OSError) else str(problem)
        raise DataError(f"cannot write {path}: {text}; nothing was left under that name") from None


def claim_space(path: Path, log: EpisodeLog) -> None:
    """Raise if the disk cannot hold the rows of `log` uncompressed, by claiming that much for a moment.

    HDF5 does not survive a disk that fills up while it writes: it takes the whole process with it.
    """
    size = sum(values.nbytes for values in log.columns.values())
    if hasattr(os, "posix_fallocate"):
        with tempfile.TemporaryFile(dir=path.parent) as file:
            os.posix_fallocate(file.fileno(), 0, size + HDF5_OVERHEAD)


def refuse_loss(log: EpisodeLog, format: str, *, successors: bool = False) -> None:
    """Raise where a format of another project has no place for something that the log holds.

    `successors` says that it needs the observation after every step, in rows that follow one another.
    """
    if log.further:
        listed = ", ".join(sorted(log.further))
        raise DataError(
            f"{log.info.source}: {format} has no place for {listed}; read the log without them, or write "
            "another format"
        )
    if successors and log.next_obs is None:
        raise DataError(
            f"{log.info.source}: {format} needs the observation after every step, which this log does not "
            "have"
        )
