"""Observations and actions as they are outside: their names, their units, and the way to [-1, 1] and back.

An action has one column per thing that is decided: a number between bounds (`Box`) or one of a few levels
(`Choice`). Learners see it encoded: a box as one number in [-1, 1], a choice as a block of -1 and one +1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, pairwise
from math import prod
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import UserError
from rl_training.core.types import Array, Facts, State

if TYPE_CHECKING:
    from torch import Tensor

FloatArray = npt.NDArray[np.float32]
Level = float | str


def level_text(level: Level) -> str:
    """A level as a log has it."""
    return level if isinstance(level, str) else f"{level:g}"


@dataclass(frozen=True)
class FeatureNames:
    """One name per number, or none where nobody named them; units by name."""

    observations: tuple[str, ...] = ()
    actions: tuple[str, ...] = ()
    units: Mapping[str, str] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return bool(self.observations or self.actions)

    def name_of(self, kind: str, index: int) -> str:
        """What one observed or acted number is called: `T_tank (°C)`, or `observation 3`."""
        names = self.observations if kind == "observation" else self.actions
        if not index < len(names):
            return f"{kind} {index}"
        unit = self.units.get(names[index])
        return names[index] if unit is None else f"{names[index]} ({unit})"

    def listed(self, kind: str) -> list[str]:
        """All names of a kind, with units."""
        names = self.observations if kind == "observation" else self.actions
        return [self.name_of(kind, index) for index in range(len(names))]

    def to_dict(self) -> dict[str, Any]:
        return {
            "observations": list(self.observations),
            "actions": list(self.actions),
            "units": dict(self.units),
        }

    @classmethod
    def from_dict(cls, stored: object) -> FeatureNames:
        """Read what `to_dict` wrote. Names only describe: what a file says wrongly about them is left out."""
        if not isinstance(stored, Mapping):
            return cls()
        units = stored.get("units")
        return cls(
            _texts(stored.get("observations")),
            _texts(stored.get("actions")),
            {str(key): str(value) for key, value in units.items()} if isinstance(units, Mapping) else {},
        )


def _texts(values: object) -> tuple[str, ...]:
    return tuple(str(value) for value in values) if isinstance(values, list | tuple) else ()


@dataclass(frozen=True)
class Box:
    """A number between two bounds."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not (np.isfinite(self.low) and np.isfinite(self.high) and self.low < self.high):
            raise UserError(f"action bounds must be finite with low < high, got [{self.low}, {self.high}]")

    def __str__(self) -> str:
        return f"a number in [{self.low:g}, {self.high:g}]"


@dataclass(frozen=True)
class Choice:
    """One of several levels: numbers as a log has them, or names, for which their place stands in columns."""

    levels: tuple[Level, ...]

    def __post_init__(self) -> None:
        words = {isinstance(level, str) for level in self.levels}
        distinct = len(set(self.levels)) == len(self.levels)
        if len(self.levels) < 2 or not distinct or len(words) != 1 or not np.isfinite(self.numbers).all():
            raise UserError(
                f"levels of a choice must be two or more different names, or numbers, got {list(self.levels)}"
            )

    def __str__(self) -> str:
        return f"a choice among {', '.join(map(level_text, self.levels))}"

    @property
    def named(self) -> bool:
        return isinstance(self.levels[0], str)

    @cached_property
    def numbers(self) -> FloatArray:
        """What stands for each level in a column of numbers."""
        values = [place if isinstance(level, str) else level for place, level in enumerate(self.levels)]
        return np.array(values, dtype=np.float32)

    @cached_property
    def _spelled(self) -> dict[object, int]:
        """Place of a level by number and name, also in small letters where no other is written so."""
        known: dict[object, int] = {float(number): place for place, number in enumerate(self.numbers)}
        small = [str(level).casefold() for level in self.levels]
        if len(set(small)) == len(small):
            known |= {name: place for place, name in enumerate(small)}
        return known | {level: place for place, level in enumerate(self.levels)}

    def place(self, cell: object) -> int:
        """Which level a cell of any kind is, -1 for none: `ON`, `on`, 1 and `1.0` are read as they stand."""
        if isinstance(cell, str):
            text = cell.strip()
            found = self._spelled.get(text, self._spelled.get(text.casefold(), -1))
            return self.place(_number(text)) if found < 0 and not self.named else found
        return self._spelled.get(cell, -1)

    def places(self, column: Array) -> npt.NDArray[np.intp]:
        """Which level each cell is, given by its number or its name; another cell is an error."""
        if column.dtype.kind == "O":
            listed = [self.place(cell) for cell in column.reshape(-1).tolist()]
            found = np.array(listed, dtype=np.intp).reshape(column.shape)
        else:
            same = column.astype(np.float32)[..., None] == self.numbers
            found = np.where(same.any(axis=-1), same.argmax(axis=-1), -1)
        if (found < 0).any():
            raise UserError(f"an action of {column[found < 0].tolist()[0]!r} is not in {self}")
        return found


def _number(text: str) -> float:
    try:
        return float(text.replace(",", "."))
    except ValueError:
        return np.nan


Part = Box | Choice
ActionKind = Literal["numbers", "choices", "many choices", "mixtures"]
MOST_COMBINATIONS = 64
"""Combinations of levels up to which each has a value of its own; beyond, they are inputs of a critic."""


@dataclass(frozen=True)
class Spaces:
    """Flat observations of `obs_dim` numbers, and actions of columns between `action_low` and `action_high`.

    `choices` has an entry per column where any of them is a choice, whose bounds are then its smallest and
    largest number. `Spaces.of` makes one from parts. Where they are `masked`, the last numbers of an
    observation say which levels may be taken, 1 or 0 for each level of each choice.
    """

    obs_dim: int
    action_low: tuple[float, ...]
    action_high: tuple[float, ...]
    choices: tuple[Choice | None, ...] = field(default=(), kw_only=True)
    masked: bool = field(default=False, kw_only=True)

    @classmethod
    def of(cls, obs_dim: int, parts: Sequence[Part], *, masked: bool = False) -> Spaces:
        """Spaces whose action has these parts, one a column."""
        bounds = [
            (part.low, part.high)
            if isinstance(part, Box)
            else (float(part.numbers.min()), float(part.numbers.max()))
            for part in parts
        ]
        choices = tuple(part if isinstance(part, Choice) else None for part in parts)
        low, high = tuple(low for low, _ in bounds), tuple(high for _, high in bounds)
        return cls(obs_dim, low, high, choices=choices if any(choices) else (), masked=masked)

    def __post_init__(self) -> None:
        if self.obs_dim < 1:
            raise UserError(f"obs_dim must be >= 1, got {self.obs_dim}")
        if len(self.action_low) != len(self.action_high) or not self.action_low:
            raise UserError(
                "action_low and action_high must have the same length >= 1, "
                f"got {len(self.action_low)} and {len(self.action_high)}"
            )
        if self.choices and len(self.choices) != len(self.action_low):
            raise UserError(
                f"levels must have one entry per action ({len(self.action_low)}), got {len(self.choices)}"
            )
        for low, high in zip(self.action_low, self.action_high, strict=True):
            Box(low, high)
        if self.masked and not self.obs_dim > self.mask_size > 0:
            raise UserError(
                f"action_mask needs choices, and observations beside its {self.mask_size} numbers, one per "
                f"level; there are {self.obs_dim} with it"
            )

    @cached_property
    def parts(self) -> tuple[Part, ...]:
        """What each column of an action is."""
        choices = self.choices or (None,) * self.action_columns
        columns = zip(self.action_low, self.action_high, choices, strict=True)
        return tuple(Box(low, high) if choice is None else choice for low, high, choice in columns)

    @property
    def action_columns(self) -> int:
        """Columns of an action outside: in a log, an environment, an answer."""
        return len(self.action_low)

    @property
    def action_dim(self) -> int:
        """Numbers of an action as learners see it; more than columns where there are choices."""
        return self._blocks[-1].stop if self.choices else len(self.action_low)

    @property
    def kind(self) -> ActionKind:
        """What an action is made of; many choices have more combinations of levels than are counted out."""
        if not self.choices:
            return "numbers"
        if not all(self.choices):
            return "mixtures"
        return "choices" if prod(self.levels) <= MOST_COMBINATIONS else "many choices"

    @cached_property
    def levels(self) -> tuple[int, ...]:
        """Encoded numbers of each part: as many as a choice has levels, 1 of a box."""
        return tuple(len(part.levels) if isinstance(part, Choice) else 1 for part in self.parts)

    @cached_property
    def _blocks(self) -> tuple[slice, ...]:
        """Where the encoded numbers of each part stand."""
        return tuple(slice(*ends) for ends in pairwise(accumulate(self.levels, initial=0)))

    @property
    def mask_size(self) -> int:
        """Numbers of a mask: one per level of each choice."""
        return sum(size for size in self.levels if size > 1)

    def allowed(self, obs: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which encoded numbers `[…, action_dim]` may be taken, by the mask in observations; boxes always.

        A mask that rules out every level of a choice, or did not come (NaN), says nothing of it.
        """
        mask = np.nan_to_num(np.asarray(obs, dtype=np.float32)[..., -self.mask_size :], nan=1.0)
        found = np.ones((*mask.shape[:-1], self.action_dim), dtype=np.bool_)
        start = 0
        for block, size in zip(self._blocks, self.levels, strict=True):
            if size > 1:
                own = mask[..., start : start + size]
                found[..., block] = own >= np.minimum(own.max(axis=-1, keepdims=True), 0.5)
                start += size
        return found

    def within_mask(self, columns: FloatArray, own: FloatArray, obs: npt.ArrayLike) -> FloatArray:
        """Actions `[n, action_columns]` of levels that may be taken: any other gives way to that of a
        policy's `own` action, or, where that is NaN, to the first that may be.
        """
        allowed, kept = self.allowed(obs), columns.copy()
        for index, (part, block) in enumerate(zip(self.parts, self._blocks, strict=True)):
            if isinstance(part, Choice):
                may = allowed[:, block]
                wrong = ~may[np.arange(len(kept)), part.places(kept[:, index])]
                instead = np.where(np.isnan(own[:, index]), part.numbers[may.argmax(axis=1)], own[:, index])
                kept[wrong, index] = instead[wrong]
        return kept

    @property
    def of_boxes(self) -> npt.NDArray[np.bool_]:
        """Which encoded numbers are those of boxes."""
        return np.repeat([isinstance(part, Box) for part in self.parts], self.levels)

    def encode(self, actions: npt.ArrayLike) -> FloatArray:
        """Columns `[…, action_columns]` -> `[…, action_dim]`; named levels may be given by name.

        A box is not clipped, so that data outside the bounds stays visible; a choice must be a level.
        """
        middle, half, _, _ = self.scale
        if not self.choices:
            unit: FloatArray = ((np.asarray(actions, dtype=np.float64) - middle) / half).astype(np.float32)
            return unit
        given = actions if isinstance(actions, np.ndarray) else np.asarray(actions, dtype=object)
        columns = []
        for index, part in enumerate(self.parts):
            column = given[..., index]
            if isinstance(part, Choice):
                columns.append(part.places(column))
            else:
                columns.append((column.astype(np.float64) - middle[index]) / half[index])
        return self._joined(columns)

    def _joined(self, columns: Sequence[Array]) -> FloatArray:
        """Encoded actions, of the number of each box and the place of the level of each choice."""
        blocks = [
            2.0 * np.eye(len(part.levels))[column] - 1.0 if isinstance(part, Choice) else column[..., None]
            for part, column in zip(self.parts, columns, strict=True)
        ]
        return np.concatenate(blocks, axis=-1).astype(np.float32)

    def decode(self, unit_actions: npt.ArrayLike) -> FloatArray:
        """`[…, action_dim]` -> columns, inside the bounds: rounding never leaves them.

        Of a choice, the level whose number is largest.
        """
        middle, half, low, high = self.scale
        unit = np.asarray(unit_actions, dtype=np.float64)
        numbers = unit if not self.choices else unit[..., [block.start for block in self._blocks]]
        columns: FloatArray = (numbers * half + middle).astype(np.float32)
        for index, choice in enumerate(self.choices):
            if choice is not None:
                columns[..., index] = choice.numbers[unit[..., self._blocks[index]].argmax(axis=-1)]
        inside: FloatArray = np.minimum(np.maximum(columns, low), high)
        return inside

    to_unit, to_env = encode, decode

    def decode_tensor(self, unit: Tensor) -> Tensor:
        """The same for a tensor, in its own precision and on its device."""
        import torch

        columns = []
        for part, block, *scale in zip(self.parts, self._blocks, *self.scale, strict=True):
            if isinstance(part, Choice):
                places = torch.arange(len(part.levels), device=unit.device)
                best = unit[..., block].argmax(-1, keepdim=True) == places
                numbers = torch.tensor(part.numbers.tolist(), device=unit.device, dtype=unit.dtype)
                columns.append((best.to(unit.dtype) @ numbers.unsqueeze(-1)).float())
            else:
                middle, half, low, high = map(float, scale)
                columns.append((unit[..., block] * half + middle).clamp(low, high).float())
        return columns[0] if len(columns) == 1 else torch.cat(columns, dim=-1)

    @property
    def as_shares(self) -> Spaces:
        """The same actions as numbers alone: a box in its own units, a choice as a share of each level."""
        if not self.choices:
            return self
        bounds = [
            (part.low, part.high) if isinstance(part, Box) else (0.0, 1.0)
            for part, size in zip(self.parts, self.levels, strict=True)
            for _ in range(size)
        ]
        return Spaces(self.obs_dim, tuple(low for low, _ in bounds), tuple(high for _, high in bounds))

    def in_shares(self, columns: npt.ArrayLike) -> FloatArray:
        """Columns as `as_shares` has them: 1 for the level taken, 0 for the others; boxes are not clipped."""
        given = np.asarray(columns, dtype=object)
        shares = ((self.encode(columns) + 1.0) / 2.0).astype(np.float32)
        for index, (part, block) in enumerate(zip(self.parts, self._blocks, strict=True)):
            if isinstance(part, Box):
                shares[..., block.start] = given[..., index].astype(np.float32)
        return shares

    def share_name(self, index: int, names: Callable[[int], str]) -> str:
        """What a number of `as_shares` is called: `valve`, or `pump = on`."""
        column = next(i for i, block in enumerate(self._blocks) if index < block.stop)
        part, name = self.parts[column], names(column)
        if isinstance(part, Box):
            return name
        return f"{name} = {level_text(part.levels[index - self._blocks[column].start])}"

    def random(self, uniform: npt.ArrayLike, obs: npt.ArrayLike | None = None) -> FloatArray:
        """Encoded actions, all equally likely, from numbers in [-1, 1), one per column.

        Where there are masks, `obs` has to say which may be taken.
        """
        drawn: FloatArray = np.array(uniform, dtype=np.float32)
        if not self.choices:
            return drawn
        shares = (drawn.astype(np.float64) + 1.0) / 2.0
        allowed = np.ones((*drawn.shape[:-1], self.action_dim), dtype=np.bool_)
        if self.masked:
            assert obs is not None
            allowed = self.allowed(obs)
        columns: list[Array] = []
        for index, (part, block) in enumerate(zip(self.parts, self._blocks, strict=True)):
            if isinstance(part, Choice):
                counted = allowed[..., block].cumsum(axis=-1)
                which = np.floor(shares[..., index] * counted[..., -1])
                columns.append((counted > which[..., None]).argmax(axis=-1))
            else:
                columns.append(drawn[..., index])
        return self._joined(columns)

    def clip(self, actions: npt.ArrayLike) -> FloatArray:
        """Columns of numbers inside the bounds, and on the nearest level of a choice."""
        _, _, low, high = self.scale
        inside: FloatArray = np.clip(np.asarray(actions, dtype=np.float32), low, high)
        for index, choice in enumerate(self.choices):
            if choice is not None:
                distances = np.abs(inside[..., index, None] - choice.numbers)
                inside[..., index] = choice.numbers[distances.argmin(axis=-1)]
        return inside

    def in_words(self, columns: FloatArray) -> Array:
        """Columns as answers: names in place of the numbers that stand for named levels."""
        return in_words(self.choices, columns) if self.choices else columns

    def in_numbers(self, answers: Array) -> Array:
        """The inverse of `in_words`."""
        return self.decode(self.encode(answers)) if answers.dtype == object else answers

    @cached_property
    def scale(self) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64], FloatArray, FloatArray]:
        """Middle and half width of the bounds, and the bounds in float32: acting asks for them every step."""
        low, high = np.array(self.action_low), np.array(self.action_high)
        inner = inner_float32(low, upward=True), inner_float32(high, upward=False)
        return (low + high) / 2.0, (high - low) / 2.0, *inner

    def check_observations(self, obs: npt.ArrayLike | None, *, finite: bool = True) -> FloatArray:
        """Finite numbers of shape `(obs_dim,)` or `(n, obs_dim)`, or an error that says what they are.

        Without `finite`, NaN says that a number is missing, and `None` that the whole observation is.
        """
        size = self.obs_dim
        if obs is None and not finite:
            return np.full(size, np.nan, dtype=np.float32)
        try:
            values = np.asarray(obs, dtype=np.float32)
        except (TypeError, ValueError) as error:
            hint = "; gymnasium.spaces.flatten(space, obs) makes them of a dictionary"
            raise UserError(
                f"obs must be numbers of shape ({size},) or (n, {size}): {error}"
                f"{hint if isinstance(obs, Mapping) else ''}"
            ) from None
        if values.ndim not in (1, 2) or values.shape[-1] != size:
            raise UserError(f"obs must have shape ({size},) or (n, {size}), got {values.shape}")
        if finite and not np.isfinite(values).all():
            row = int(np.flatnonzero(~np.isfinite(np.atleast_2d(values)).all(axis=-1))[0])
            raise UserError(f"obs must be finite, row {row} holds NaN or infinity")
        return values

    def to_dict(self) -> State:
        stored: State = {
            "obs_dim": self.obs_dim,
            "action_low": list(self.action_low),
            "action_high": list(self.action_high),
        }
        if self.choices:
            stored["action_levels"] = levels_of(self.choices)
        if self.masked:
            stored["masked"] = True
        return stored

    @classmethod
    def from_dict(cls, values: Facts) -> Spaces:
        """What `to_dict` wrote; files from before there were choices have no levels."""
        return cls(
            obs_dim=int(values["obs_dim"]),
            action_low=tuple(float(v) for v in values["action_low"]),
            action_high=tuple(float(v) for v in values["action_high"]),
            choices=choices_from(values.get("action_levels") or ()),
            masked=bool(values.get("masked")),
        )


def levels_of(choices: Sequence[Choice | None]) -> list[list[Level] | None]:
    """Choices as plain data."""
    return [None if each is None else list(each.levels) for each in choices]


def choices_from(levels: Sequence[Sequence[Level] | None]) -> tuple[Choice | None, ...]:
    """The inverse of `levels_of`."""
    return tuple(None if each is None else Choice(tuple(each)) for each in levels)


def in_words(choices: Sequence[Choice | None], columns: Array) -> Array:
    """Columns of actions with names in place of the numbers that stand for named levels; NaN stays."""
    if not any(choice is not None and choice.named for choice in choices):
        return columns
    answers = columns.astype(object)
    for index, choice in enumerate(choices):
        if choice is not None and choice.named:
            known = ~np.isnan(columns[..., index])
            places = np.where(known, columns[..., index], 0).astype(np.intp)
            names = np.array(choice.levels, dtype=object)[places]
            answers[..., index] = np.where(known, np.asarray(names, dtype=object), np.nan)
    return answers


def unit_spaces(obs_dim: int, action_dim: int) -> Spaces:
    """Spaces of a learner that nobody has told of an environment."""
    return Spaces(obs_dim, (-1.0,) * action_dim, (1.0,) * action_dim)


def inner_float32(bound: npt.NDArray[np.float64], *, upward: bool) -> FloatArray:
    """The float32 nearest to `bound` that is not outside it (rounding 0.1 to float32 goes up)."""
    rounded = bound.astype(np.float32)
    outside = rounded < bound if upward else rounded > bound
    towards = np.float32(np.inf if upward else -np.inf)
    return np.where(outside, np.nextafter(rounded, towards), rounded).astype(np.float32)
