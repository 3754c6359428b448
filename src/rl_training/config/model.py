"""What a config is made of: fields with default, bounds and meaning, mistakes in sentences, tables that
explain.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from inspect import get_annotations
from types import NoneType, UnionType
from typing import Annotated, Any, ClassVar, Literal, Self, Union, cast, get_args, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from rl_training.core.errors import ConfigError, did_you_mean, shown

_SIGNS = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
_HOLDS = {"gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le}
_WORDS: dict[object, str] = {
    bool: "true/false",
    int: "integer",
    float: "number",
    str: "text",
    dict: "mapping",
    NoneType: "null",
}
_PLURALS = {
    "integer": "integers",
    "number": "numbers",
    "text": "texts",
    "mapping": "mappings",
    "value": "values",
}
_WITHOUT_ARTICLE = frozenset({"true/false", "text", "null"})


def setting(
    default: Any,
    meaning: str,
    *,
    gt: float | None = None,
    ge: float | None = None,
    lt: float | None = None,
    le: float | None = None,
    most: int | None = None,
    longest: int | None = None,
) -> Any:
    """Declare a config field; `default=...` (an ellipsis) makes it required.

    The bounds hold for every number in the value: a list is checked entry by entry, and `None` or a word such
    as "auto" passes. Pydantic's own bounds cannot do that for `float | Literal["auto"]`, so they are kept
    beside the field and checked by `ConfigModel`. `most` is a size that no machine
    could want (`core/schema.py`) and is not worth a word in a table; `longest` limits the entries of a list.
    """
    given = {"gt": gt, "ge": ge, "lt": lt, "le": le}
    bounds: JsonDict = {name: limit for name, limit in given.items() if limit is not None}
    return Field(
        default, description=meaning, json_schema_extra={"bounds": bounds, "most": most, "longest": longest}
    )


def bounds_of(field: FieldInfo) -> dict[str, float]:
    """The bounds given to `setting`, such as `{"gt": 0, "le": 1}`."""
    extra = field.json_schema_extra
    return cast("dict[str, float]", extra.get("bounds", {})) if isinstance(extra, dict) else {}


def limit_of(field: FieldInfo, name: Literal["most", "longest"]) -> int | None:
    """The limit of this name given to `setting`."""
    extra = field.json_schema_extra
    return cast("int | None", extra.get(name)) if isinstance(extra, dict) else None


def bounds_text(field: FieldInfo) -> str:
    """The bounds as a reader writes them: `>= 1`, or `in (0, 1]` where both sides are bound."""
    bounds = bounds_of(field)
    if len(bounds) == 2:
        (low, least), (high, most) = sorted(bounds.items(), key=lambda bound: bound[0][0])
        return f"in {'[' if low == 'ge' else '('}{least:g}, {most:g}{']' if high == 'le' else ')'}"
    return ", ".join(f"{_SIGNS[name]} {limit:g}" for name, limit in bounds.items())


def bound_problem(field: FieldInfo, value: object) -> tuple[str, str] | None:
    """The first broken bound as (position inside the value, message), or None."""
    longest, most = limit_of(field, "longest"), limit_of(field, "most")
    if isinstance(value, tuple) and longest is not None and len(value) > longest:
        return "", f"must have at most {longest} entries, got {len(value)}"
    entries = enumerate(value) if isinstance(value, tuple) else ((None, value),)
    for index, number in entries:
        if isinstance(number, bool) or not isinstance(number, int | float):
            continue
        position = "" if index is None else f"[{index}]"
        if isinstance(number, float) and not math.isfinite(number):
            return position, f"must be a finite number, got {number!r}"
        for name, limit in bounds_of(field).items():
            if not _HOLDS[name](number, limit):
                return position, f"must be {bounds_text(field)}, got {number!r}"
        if most is not None and number > most:
            return position, f"must be at most {most}, got {number!r}"
    return None


def type_text(annotation: object) -> str:
    """The type in plain words for a table: `number or 'auto'`, `list of integers`."""
    return " or ".join(_alternatives(annotation))


def rule_text(annotation: object) -> str:
    """The type as the end of the sentence "x must be ...": `a number or 'auto'`."""
    return " or ".join(_with_article(words) for words in _alternatives(annotation))


def literal_choices(annotation: object) -> list[str]:
    """The words a field accepts, alone or in a list, for "did you mean"."""
    if get_origin(annotation) is Literal:
        return [choice for choice in get_args(annotation) if isinstance(choice, str)]
    if get_origin(annotation) in (Union, UnionType, tuple):
        return [choice for part in get_args(annotation) for choice in literal_choices(part)]
    return []


def accepts_tuple(annotation: object) -> bool:
    """Whether a list given for this field stands for a tuple (YAML and JSON know only lists)."""
    if get_origin(annotation) in (Union, UnionType):
        return any(accepts_tuple(part) for part in get_args(annotation))
    return get_origin(annotation) is tuple


def _with_article(words: str) -> str:
    if words in _WITHOUT_ARTICLE or words.startswith(("'", "one of")):
        return words
    return f"an {words}" if words[0] in "aeiou" else f"a {words}"


def _alternatives(annotation: object) -> list[str]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _alternatives(get_args(annotation)[0])
    if origin in (Union, UnionType):
        return [words for part in get_args(annotation) for words in _alternatives(part)]
    if origin is Literal:
        choices = [repr(choice) for choice in get_args(annotation)]
        return choices if len(choices) < 3 else ["one of " + ", ".join(choices)]
    if origin is tuple:
        return [_tuple_words(get_args(annotation))]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return ["mapping"]
    return [_WORDS.get(origin or annotation, "value")]


def _tuple_words(parts: tuple[object, ...]) -> str:
    words = _alternatives(parts[0])
    plural = ", ".join(_PLURALS.get(word, word.removeprefix("one of ")) for word in words)
    return f"list of {plural}" if parts[-1] is Ellipsis else f"list of {len(parts)} {plural}"


BOUND_ERROR = "out_of_bounds"


def mistakes_in(
    model: type[BaseModel],
    values: Mapping[str, object],
    error: ValidationError,
    elsewhere: Iterable[str] = (),
) -> list[str]:
    """One sentence per mistake, in the order pydantic found them.

    `elsewhere` lists full names of keys that live at another level (`algo_kwargs.gamma`), so that a key
    written at the wrong level is pointed to its place.
    """
    lines: list[str] = []
    for detail in error.errors(include_url=False):
        lines.extend(_sentences(model, values, detail, elsewhere))
    return list(dict.fromkeys(lines))  # a union reports one error per alternative: the sentence is the same


def under(where: str, lines: Iterable[str]) -> list[str]:
    """Prefix sentences with the place of the mapping they are about."""
    return [f"{where}.{line}" if where else line for line in lines]


def unknown_key(key: str, known: Iterable[str], elsewhere: Iterable[str] = ()) -> str:
    """The sentence for a key that does not exist, with the nearest key or the place where it belongs."""
    place = next((name for name in elsewhere if name.rpartition(".")[2] == key), None)
    if place is not None:
        level = "inside" if "." in place else "outside"
        return f"{key} is not a known key here ('{place}' belongs {level} algo_kwargs)"
    return f"{key} is not a known key{did_you_mean(key, [*known, *elsewhere])}"


def _sentences(
    model: type[BaseModel], values: Mapping[str, object], detail: ErrorDetails, elsewhere: Iterable[str]
) -> list[str]:
    name = str(detail["loc"][0]) if detail["loc"] else ""
    kind = detail["type"]
    if kind == "extra_forbidden":
        return [unknown_key(name, model.model_fields, elsewhere)]
    if kind == BOUND_ERROR:
        return [f"{name}{detail['msg']}"]
    if kind in ("value_error", "assertion_error"):
        entry = "".join(f"[{part}]" for part in detail["loc"][1:] if isinstance(part, int))
        return _own_rule(name + entry, detail)
    field = model.model_fields[name]
    if kind == "missing" and len(detail["loc"]) == 1:
        return [f"{name} is required: {field.description}"]
    return [_wrong_type(name, field, values[name])]


def _own_rule(name: str, detail: ErrorDetails) -> list[str]:
    """A rule written as a validator: its own words, except that a nested config is named by its field."""
    error = detail["ctx"]["error"]
    lines = str(error).splitlines()
    return under(name, lines) if isinstance(error, ConfigError) else lines


def _wrong_type(name: str, field: FieldInfo, value: object) -> str:
    rule, hint = rule_text(field.annotation), ""
    choices = literal_choices(field.annotation)
    words = value if isinstance(value, list | tuple) else [value]
    wrong = next((word for word in words if isinstance(word, str) and word not in choices), None)
    if wrong is not None:
        hint = did_you_mean(wrong, choices)
    elif isinstance(value, float) and value.is_integer() and "integer" in rule:
        hint = f" (write {int(value)})"  # 1e6 is the usual slip
    return f"{name} must be {rule}, got {shown(value)}{hint}"


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
        lines += self.complete(values, valid=not lines)
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

    def complete(self, values: Mapping[str, object], *, valid: bool) -> list[str]:
        """What follows the fields, which may not be `valid`: more mistakes, or more of the object."""
        return self.further_mistakes(values)

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


@dataclass(frozen=True)
class FieldRow:
    """One setting in words."""

    name: str
    type: str
    bound: str
    default: str
    meaning: str
    group: str


def describe_fields(model: type[ConfigModel]) -> list[FieldRow]:
    """Every field of a config; the fields of a nested config follow it as `parent.field`."""
    rows: list[FieldRow] = []
    for name, field in model.model_fields.items():
        group = _group(model, name)
        rows.append(_row(name, field, group))
        nested = _nested_model(field.annotation)
        if nested is not None:
            rows += [_row(f"{name}.{inner}", part, group) for inner, part in nested.model_fields.items()]
    return rows


def _row(name: str, field: FieldInfo, group: str) -> FieldRow:
    default = "required" if field.is_required() else _default_text(field.default)
    return FieldRow(
        name, type_text(field.annotation), bounds_text(field), default, field.description or "", group
    )


def _default_text(value: object) -> str:
    """The default as it would be written in YAML."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, tuple):
        return f"[{', '.join(_default_text(item) for item in value)}]"
    return str(value)


def _group(model: type[ConfigModel], name: str) -> str:
    """The heading of the class that first declares the field; a subclass may change the default only."""
    owner = [base for base in model.__mro__ if name in get_annotations(base)][-1]
    return str(getattr(owner, "section", ConfigModel.section))


def _nested_model(annotation: object) -> type[ConfigModel] | None:
    for part in (annotation, *get_args(annotation)):
        if isinstance(part, type) and part is not NoneType and issubclass(part, ConfigModel):
            return part
    return None
