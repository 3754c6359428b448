"""Formulas in the mapping of a table: told from names of columns, computed once the rows are there."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from rl_training.config.data import ColumnsConfig
from rl_training.core.errors import DataError
from rl_training.core.expressions import Column, Expression, Next, parse, split_list, walk
from rl_training.core.over_log import (
    BoolArray,
    Float64Array,
    LogRows,
    OverLog,
    refuse_long_lags,
    refuse_no_number,
    rows_since_start,
)
from rl_training.core.signals import Program, observed, with_moved_lags
from rl_training.core.types import Array
from rl_training.data.fields import FIELDS, FORMULA_COLUMNS, all_fields
from rl_training.data.tables.names import expanded, matching

_FORMULA = re.compile(r"[-+/%<>=!()`]|\w\s*\*+\s*[\w(]|\b(?:and|or|not|if)\b")
_SINGLE = ("episode", "time")
"""Roles whose columns are no numbers."""


@dataclass(frozen=True)
class Formulas:
    """What of a table's mapping is computed from its columns."""

    signals: Program | None = None
    """the observation, where it is more than columns"""
    computed: Mapping[str, Expression] = field(default_factory=dict)
    """field of one value per row -> its formula"""
    costs: Mapping[str, Expression] = field(default_factory=dict)
    """cost -> its formula, which may be a column alone"""
    actions: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Columns that costs and the fields of one value are computed from."""
        formulas = (*self.computed.values(), *self.costs.values())
        nodes = (node for each in formulas for node in walk(each.node))
        return list(dict.fromkeys(node.name for node in nodes if isinstance(node, Column)))


def is_formula(text: str, names: Sequence[str]) -> bool:
    """Whether an entry of a mapping is neither a column nor a pattern that stands for some."""
    return not matching(text, names) and _FORMULA.search(text) is not None


def split_formulas(
    names: Sequence[str], columns: ColumnsConfig, source: str, costs: Mapping[str, str] | None = None
) -> tuple[ColumnsConfig, Formulas]:
    """The mapping with columns alone, and the formulas that stood in it."""
    actions = tuple(
        name
        for entry in columns.actions
        for name in (expanded(entry, names, "actions", source) if matching(entry, names) else ())
    )
    computed: dict[str, Expression] = {}
    plain: dict[str, None] = {}
    fields = dict(columns.fields)
    for each in all_fields():
        given = getattr(columns, each.role) if each.role else columns.fields.get(each.name)
        text = given if isinstance(given, str) else given[0] if given and len(given) == 1 else None
        if text is None or each.kind == "vector" or each.role in _SINGLE or not is_formula(text, names):
            continue
        computed[each.name] = one_expression(each.name, text, names, actions)
        if each.role:
            plain[each.role] = None
        else:
            del fields[each.name]
    entries = [entry for given in columns.observations for entry in _entries(given, names)]
    signals = None
    if any(is_formula(entry, names) for entry in entries):
        signals = _program(entries, names, actions, source)
        entries = list(signals.columns)
    found = columns.model_copy(update={**plain, "fields": fields, "observations": tuple(entries)})
    formulas = {name: cost_expression(name, text, names, actions) for name, text in (costs or {}).items()}
    return found, Formulas(signals, computed, formulas, actions)


def cost_expression(name: str, text: str, names: Sequence[str], actions: Sequence[str]) -> Expression:
    """What a cost is: a column by its plain name, or a formula."""
    if text in names:
        return Expression(text, Column(text))
    return one_expression(f"cost {name}", text, names, actions)


def _entries(text: str, names: Sequence[str]) -> list[str]:
    """One text may hold a whole list."""
    return [text] if text in names else split_list(text)


def one_expression(what: str, text: str, names: Sequence[str], actions: Sequence[str]) -> Expression:
    """The formula of one value per row, in which an action of the past is one that ran."""
    if len(entries := split_list(text)) != 1:
        raise DataError(f"{what} must be one expression, got {len(entries)} in {text!r}")
    found = parse(text, names)
    return Expression(found.text, with_moved_lags(found.node, actions))


def _program(entries: Sequence[str], names: Sequence[str], actions: Sequence[str], source: str) -> Program:
    """The signals of an observation, over the columns that stand in them, in the order in which they do."""
    if not actions:
        raise DataError(f"{source}: observations with formulas need the columns of the actions (--action)")
    texts: list[str] = []
    for entry in entries:
        texts += [entry] if is_formula(entry, names) else expanded(entry, names, "observations", source)
    nodes = (node for text in texts for each in observed(text, names, actions) for node in walk(each.node))
    used = dict.fromkeys(node.name for node in nodes if isinstance(node, Column))
    seen = tuple(name for name in used if name not in actions)
    if not seen:
        raise DataError(f"{source}: an observation needs a column beside past actions")
    return Program(tuple(texts), seen, tuple(actions))


# ---- once the rows are there


@dataclass(frozen=True)
class FormulaRows:
    """The columns of a table's formulas, where its episodes end, and how a row of it is told."""

    formulas: Formulas
    values: Array
    ends: BoolArray
    place: Callable[[int], str]

    def computed(self, kind: str, *, lenient: bool = False) -> dict[str, Float64Array]:
        """The fields of a kind; a value that is no number is refused, unless it could only come later."""
        chosen = {
            name: each for name, each in self.formulas.computed.items() if FIELDS.get(name).kind == kind
        }
        return self._values(chosen, checked=kind == "number" and not lenient)

    def costs(self, *, lenient: bool = False) -> list[Float64Array]:
        """The values of every cost."""
        return list(self._values(self.formulas.costs, checked=not lenient).values())

    def _values(self, chosen: Mapping[str, Expression], *, checked: bool) -> dict[str, Float64Array]:
        if not chosen:
            return {}
        columns = dict(zip(self.formulas.columns, self.values.T, strict=True))
        mean = {name: _mean(columns[name]) for name in self.formulas.actions if name in columns}
        rows = LogRows(columns, rows_since_start(self.ends), mean)
        over, found = OverLog(rows), {}
        with np.errstate(all="ignore"):
            for name, each in chosen.items():
                refuse_long_lags(each, rows.since_start)
                found[name] = np.broadcast_to(over.value(each.node), len(rows)).copy()
        for name, each in chosen.items():
            if checked:
                known = ~self.ends if has_next(each) else np.ones(len(rows), dtype=bool)
                refuse_no_number(each, over, found[name], known, self.place)
        return found

    def without_successor(self) -> BoolArray:
        """Rows for which a number needs a row that never came."""
        computed = self.formulas.computed
        numbers = [each for name, each in computed.items() if FIELDS.get(name).kind == "number"]
        return self.ends & any(map(has_next, (*numbers, *self.formulas.costs.values())))


def _mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return float(known.mean()) if len(known) else 0.0


def has_next(expression: Expression) -> bool:
    return any(isinstance(node, Next) for node in walk(expression.node))


def formula_rows(
    formulas: Formulas, columns: dict[str, Array], ends: BoolArray, place: Callable[[int], str]
) -> FormulaRows:
    values = columns.get(FORMULA_COLUMNS, np.zeros((len(ends), 0)))
    if values.shape[1] != len(formulas.columns):
        listed = ", ".join(formulas.columns)
        raise DataError(
            f"{place(0).rpartition(': ')[0]}: a formula needs one number per row of each {listed}"
        )
    return FormulaRows(formulas, values, ends, place)
