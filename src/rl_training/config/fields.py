"""What one config field is: default, bounds and meaning, and the words that describe its type."""

from __future__ import annotations

import math
import operator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, cast, get_args, get_origin

from pydantic import BaseModel, Field
from pydantic.config import JsonDict
from pydantic.fields import FieldInfo

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
    could want (`config.limits`) and is not worth a word in a table; `longest` limits the entries of a list.
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
