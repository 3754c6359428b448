"""A group of settings: strictly typed, frozen, and able to report all its mistakes at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from rl_training.config.errors import ConfigError
from rl_training.config.fields import accepts_tuple, bound_problem
from rl_training.config.mistakes import BOUND_ERROR, mistakes_in, under


class ConfigModel(BaseModel):
    """A frozen, strictly typed group of settings; unknown keys are mistakes.

    Strict means: an integer is accepted for a number and a list for a tuple, nothing else is converted ("3"
    is not 3, true is not 1, 2.0 is not 2). Construction raises `ConfigError` with one line per mistake.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, protected_namespaces=())

    section: ClassVar[str] = "hyper-parameters"
    """Heading under which `describe` lists the fields that a class itself declares."""

    def __init__(self, **values: object) -> None:
        lines: list[str] = []
        try:
            super().__init__(**values)
        except ValidationError as error:
            lines = mistakes_in(type(self), values, error, self.keys_elsewhere(values))
        lines += self.further_mistakes(values)
        if lines:
            raise ConfigError("\n".join(lines))

    @classmethod
    def build(cls, values: Mapping[str, object], *, where: str = "") -> Self:
        """Build from a mapping; `where` is the place of that mapping and leads every reported line."""
        lines = [f"{key!r} is not a known key (keys are text)" for key in values if not isinstance(key, str)]
        try:
            built = cls(**{key: value for key, value in values.items() if isinstance(key, str)})
        except ConfigError as error:
            lines += str(error).splitlines()
        if lines:
            raise ConfigError("\n".join(under(where, lines))) from None
        return built

    @classmethod
    def keys_elsewhere(cls, values: Mapping[str, object]) -> tuple[str, ...]:
        """Full names of keys that live at another level; lets an unknown key be pointed to its place."""
        return ()

    @classmethod
    def further_mistakes(cls, values: Mapping[str, object]) -> list[str]:
        """Mistakes that types and bounds cannot express, looked for even when other fields are wrong."""
        return []

    def to_dict(self) -> dict[str, Any]:
        """Every field as plain JSON data; `build` reads it back."""
        return self.model_dump(mode="json")

    def replace(self, **changes: object) -> Self:
        """A checked copy with some fields changed."""
        return self.build({**self.to_dict(), **changes})

    @model_validator(mode="before")
    @classmethod
    def _lists_are_tuples(cls, values: object) -> object:
        if not isinstance(values, dict):
            return values
        fields = cls.model_fields
        return {
            name: tuple(value)
            if isinstance(value, list) and name in fields and accepts_tuple(fields[name].annotation)
            else value
            for name, value in values.items()
        }

    @field_validator("*", mode="after")
    @classmethod
    def _bounds_hold(cls, value: object, info: ValidationInfo) -> Any:
        problem = bound_problem(cls.model_fields[info.field_name or ""], value)
        if problem is not None:
            position, text = problem
            raise PydanticCustomError(BOUND_ERROR, "{text}", {"text": f"{position} {text}"})
        return value
