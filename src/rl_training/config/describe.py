"""Rows of the tables that explain a config, for the command `describe` and the documentation."""

from __future__ import annotations

from dataclasses import dataclass
from inspect import get_annotations
from types import NoneType
from typing import get_args

from pydantic.fields import FieldInfo

from rl_training.config.fields import bounds_text, type_text
from rl_training.config.model import ConfigModel


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
