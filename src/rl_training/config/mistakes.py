"""Turn pydantic's validation errors into sentences that name field, rule, value and remedy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from rl_training.config.errors import ConfigError
from rl_training.config.fields import literal_choices, rule_text
from rl_training.config.wording import did_you_mean, shown

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
