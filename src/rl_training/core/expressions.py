"""Formulas over the columns of a log and over time, read as data: text in, a tree of known nodes out.

Python's expression syntax with a closed list of nodes and functions; nothing of a text is ever run. What the
functions of time mean, and how a tree is computed, is in `core/signals.py`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce

import numpy as np

from rl_training.core.errors import DataError, did_you_mean, shown
from rl_training.core.types import Array

MAX_TEXT = 2_000
MAX_NODES = 300
MAX_DEPTH = 40
MAX_ROWS_BACK = 1_000
"""The longest lag; a mean may reach as far as it likes, it is one number."""


class ExpressionError(DataError):
    """An expression that cannot be used; the message names it, the place in it, the rule and the remedy."""


@dataclass(frozen=True)
class Number:
    """A constant."""

    value: float


@dataclass(frozen=True)
class Column:
    """What a column holds in the row."""

    name: str


@dataclass(frozen=True)
class Call:
    """A function of values of the same row, by its name in `FUNCTIONS` or `OPERATORS`."""

    function: str
    inputs: tuple[Node, ...]


@dataclass(frozen=True)
class Lag:
    """A value some rows ago; before the first row of an episode the first one, or the mean of an action."""

    of: Node
    rows: int


@dataclass(frozen=True)
class Mean:
    """m_t = m_{t-1} + (x_t - m_{t-1}) / n, from m_0 = x_0."""

    of: Node
    rows: float


@dataclass(frozen=True)
class Sum:
    """s_t = s_{t-1} + x_t from 0, kept between two bounds after every row."""

    of: Node
    low: float
    high: float


@dataclass(frozen=True)
class Steps:
    """Rows since the episode began."""


@dataclass(frozen=True)
class Next:
    """The value of the next row of the episode, which only a log knows."""

    of: Node


Node = Number | Column | Call | Lag | Mean | Sum | Steps | Next


@dataclass(frozen=True)
class Expression:
    """A formula with the text that it is written as."""

    text: str
    node: Node


OPERATORS: dict[type[ast.AST], str] = {
    ast.Add: "add",
    ast.Sub: "subtract",
    ast.Mult: "multiply",
    ast.Div: "divide",
    ast.Pow: "power",
    ast.Mod: "modulo",
    ast.USub: "negative",
    ast.Lt: "less",
    ast.LtE: "less_equal",
    ast.Gt: "greater",
    ast.GtE: "greater_equal",
    ast.Eq: "equal",
    ast.NotEq: "not_equal",
    ast.And: "and",
    ast.Or: "or",
    ast.Not: "not",
}
"""Operators of Python's syntax -> what they compute; a comparison gives 1 or 0, all but 0 counts as true."""


def _chosen(condition: Array, x: Array, y: Array) -> Array:
    return np.where(condition, x, y)


ARITHMETIC: Mapping[str, Callable[..., Array]] = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "power": np.power,
    "modulo": lambda x, y: x - np.floor(x / y) * y,
    "negative": np.negative,
    "less": lambda x, y: np.less(x, y) * 1.0,
    "less_equal": lambda x, y: np.less_equal(x, y) * 1.0,
    "greater": lambda x, y: np.greater(x, y) * 1.0,
    "greater_equal": lambda x, y: np.greater_equal(x, y) * 1.0,
    "equal": lambda x, y: np.equal(x, y) * 1.0,
    "not_equal": lambda x, y: np.not_equal(x, y) * 1.0,
    "and": lambda x, y: np.logical_and(x, y) * 1.0,
    "or": lambda x, y: np.logical_or(x, y) * 1.0,
    "not": lambda x: np.logical_not(x) * 1.0,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "min": lambda *values: np.asarray(reduce(np.minimum, values)),
    "max": lambda *values: np.asarray(reduce(np.maximum, values)),
    "clip": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "where": lambda condition, x, y: _chosen(np.not_equal(condition, 0.0), x, y),
}
"""What each operator and function computes."""

FUNCTIONS: dict[str, tuple[int, int | None]] = {
    **dict.fromkeys(("abs", "sqrt", "exp", "log", "sin", "cos"), (1, 1)),
    **dict.fromkeys(("min", "max"), (2, None)),
    **dict.fromkeys(("clip", "where"), (3, 3)),
}
"""Functions of one row -> how many inputs they take."""

TIME_FUNCTIONS: dict[str, str] = {
    "lag": "lag(x, k=1)",
    "lags": "lags(x, k)",
    "diff": "diff(x, k=1)",
    "mean": "mean(x, n)",
    "sum": "sum(x, low, high)",
    "steps": "steps()",
    "next": "next(x)",
}
"""Functions of time -> how they are written."""

_INPUTS = {
    "lag": ("x", "k"),
    "lags": ("x", "k"),
    "diff": ("x", "k"),
    "mean": ("x", "n"),
    "sum": ("x", "low", "high"),
    "steps": (),
    "next": ("x",),
}
_NEEDED = {"lags": 2, "mean": 2, "steps": 0}
_FORBIDDEN = {
    ast.Attribute: "an attribute (a name with dots is written in backticks: `a.b`)",
    ast.Subscript: "a subscript (an earlier row is lag(x, k))",
    ast.Lambda: "a lambda",
    ast.List: "a list",
    ast.Tuple: "several values",
    ast.JoinedStr: "text",
}
_QUOTED = re.compile(r"`([^`]*)`")
_OPEN, _CLOSE = "([{", ")]}"


def split_list(text: str) -> list[str]:
    """`T_tank, lags(valve, 3)` -> its entries: commas inside brackets and backticks do not separate."""
    entries, depth, quoted, start = [], 0, False, 0
    for place, sign in enumerate(text):
        if sign == "`":
            quoted = not quoted
        elif quoted:
            continue
        elif sign in _OPEN:
            depth += 1
        elif sign in _CLOSE:
            depth -= 1
        elif sign == "," and depth <= 0:
            entries.append(text[start:place])
            start = place + 1
    return [entry.strip() for entry in (*entries, text[start:]) if entry.strip()]


def quoted(name: str) -> str:
    """A column's name as an expression writes it."""
    return name if name.isidentifier() and name.isascii() and name not in _RESERVED else f"`{name}`"


_RESERVED = {"and", "or", "not", "if", "else", "True", "False", "None", "lambda", "in", "is", *TIME_FUNCTIONS}


def parse(text: str, names: Collection[str]) -> Expression:
    """One expression over columns called `names`; an entry that is such a name stands for the column."""
    several = parse_several(text, names)
    if len(several) != 1:
        raise ExpressionError(
            f"expression {shown(text)}: lags(x, k) gives k values and stands among observations only; "
            "lag(x, k) gives one"
        )
    return several[0]


def parse_several(text: str, names: Collection[str]) -> list[Expression]:
    """One entry of a list of observations: an expression, or the k of `lags(x, k)`."""
    if text.strip() in names:
        return [Expression(text.strip(), Column(text.strip()))]
    if len(text) > MAX_TEXT:
        raise ExpressionError(
            f"expression {shown(text)} must have at most {MAX_TEXT} characters, got {len(text)}"
        )
    reader = _Reader(" ".join(text.split()), names)
    return reader.several()


class _Reader:
    """One text on its way to a tree; knows where in the text everything stands."""

    def __init__(self, text: str, names: Collection[str]) -> None:
        self.text, self.names = text, names
        self.nodes = 0

    @cached_property
    def tree(self) -> ast.expr:
        """Python's own parse, of the text with every name in backticks as a word of the same length."""
        plain = _QUOTED.sub(lambda found: "_" * len(found[0].encode()), self.text)
        if "`" in plain:
            raise self.error(None, "a backtick is not closed", "write names as `any name`")
        try:
            return ast.parse(plain, mode="eval").body
        except SyntaxError as problem:
            place = min(problem.offset or 1, len(self.text) + 1)
            raise ExpressionError(
                f"expression {shown(self.text)}: not understood at position {place} ({problem.msg}); it "
                "must be written as in Python, such as (T_tank - T_set) / 2"
            ) from None
        except (RecursionError, MemoryError, ValueError) as problem:
            raise ExpressionError(f"expression {shown(self.text)}: too deeply nested ({problem})") from None

    @cached_property
    def _bytes(self) -> bytes:
        return self.text.encode()

    def source(self, node: ast.expr) -> str:
        """The text of a node, as it was written."""
        return self._bytes[node.col_offset : node.end_col_offset].decode()

    def error(self, node: ast.expr | None, why: str, remedy: str) -> ExpressionError:
        place = "" if node is None else f" at position {len(self._bytes[: node.col_offset].decode()) + 1}"
        return ExpressionError(f"expression {shown(self.text)}: {why}{place}; {remedy}")

    def several(self) -> list[Expression]:
        tree = self.tree
        if isinstance(tree, ast.Call) and isinstance(tree.func, ast.Name) and tree.func.id == "lags":
            given = self.inputs(tree, "lags")
            rows, inner = self.rows_back(given["k"]), self.node(given["x"], 1)
            text = self.source(given["x"])
            return [
                Expression(f"lag({text}, {back})", self.lagged(inner, back)) for back in range(1, rows + 1)
            ]
        return [Expression(self.text, self.node(tree, 0))]

    def node(self, tree: ast.expr, depth: int) -> Node:
        self.nodes += 1
        if self.nodes > MAX_NODES or depth > MAX_DEPTH:
            raise self.error(
                tree,
                f"too large (at most {MAX_NODES} parts, nested {MAX_DEPTH} deep)",
                "split it, or compute it in the log",
            )
        read = _READERS.get(type(tree))
        if read is None:
            what = _FORBIDDEN.get(type(tree), f"{type(tree).__name__} of Python")
            raise self.error(
                tree,
                f"{what} is not allowed",
                "an expression has names, numbers, arithmetic, comparisons, and/or/not, `a if c else b`, "
                f"and the functions {', '.join((*FUNCTIONS, *TIME_FUNCTIONS))}",
            )
        return read(self, tree, depth + 1)

    def name(self, tree: ast.Name, depth: int) -> Node:
        name = self.source(tree).strip("`")
        if name in self.names:
            return Column(name)
        if name in FUNCTIONS or name in TIME_FUNCTIONS:
            raise self.error(
                tree, f"{name} is a function", f"call it: {TIME_FUNCTIONS.get(name, name + '(x)')}"
            )
        listed = ", ".join(self.names) or "nothing"
        raise self.error(tree, f"no column {name!r}{did_you_mean(name, self.names)}", f"it has {listed}")

    def constant(self, tree: ast.Constant, depth: int) -> Node:
        if isinstance(tree.value, bool | int | float) and abs(float_of(tree.value)) < np.inf:
            return Number(float(tree.value))
        raise self.error(tree, f"{shown(tree.value)} is no number", "compare numbers with numbers")

    def call(self, tree: ast.Call, depth: int) -> Node:
        if not isinstance(tree.func, ast.Name):
            raise self.error(tree, "something else than a name is called", "call a function by its name")
        name = tree.func.id
        if name in TIME_FUNCTIONS:
            return self.timed(tree, name, depth)
        if name not in FUNCTIONS:
            known = (*FUNCTIONS, *TIME_FUNCTIONS)
            raise self.error(
                tree, f"no function {name!r}{did_you_mean(name, known)}", f"there are {', '.join(known)}"
            )
        least, most = FUNCTIONS[name]
        count = len(tree.args)
        if tree.keywords or count < least or (most is not None and count > most):
            wanted = f"{least}" if least == most else f"{least} or more"
            raise self.error(tree, f"{name} takes {wanted} inputs without names", f"got {self.source(tree)}")
        return self.function(name, *(self.node(each, depth) for each in tree.args))

    def inputs(self, tree: ast.Call, name: str) -> dict[str, ast.expr]:
        """What stands for each input of a function of time."""
        known = _INPUTS[name]
        given = dict(zip(known, tree.args, strict=False))
        given |= {
            each.arg: each.value for each in tree.keywords if each.arg in known and each.arg not in given
        }
        needed = known[: _NEEDED.get(name, 1)]
        if len(given) != len(tree.args) + len(tree.keywords) or not given.keys() >= set(needed):
            raise self.error(tree, f"{name} is written {TIME_FUNCTIONS[name]}", f"got {self.source(tree)}")
        return given

    def timed(self, tree: ast.Call, name: str, depth: int) -> Node:
        given = self.inputs(tree, name)
        if name == "steps":
            return Steps()
        if name == "lags":
            raise self.error(
                tree, "lags(x, k) gives k values and stands alone among observations", "use lag(x, k) here"
            )
        inner = self.node(given["x"], depth)
        if any(isinstance(each, Next) for each in walk(inner)):
            raise self.error(
                tree, f"next inside {name}", "next(x) stands outside the other functions of time"
            )
        if name == "next":
            return Next(inner)
        if name == "mean":
            rows = self.plain_number(given["n"], "n")
            if rows < 1:
                raise self.error(given["n"], f"n of a mean must be >= 1, got {rows:g}", "mean(x, 20)")
            return Mean(inner, rows)
        if name == "sum":
            low, high = (
                self.plain_number(given[each], each) if each in given else sign * np.inf
                for each, sign in (("low", -1), ("high", 1))
            )
            if not low < high:
                raise self.error(tree, f"a sum must have low < high, got {low:g}, {high:g}", "sum(x, -3, 4)")
            return Sum(inner, low, high)
        rows_back = self.rows_back(given["k"]) if "k" in given else 1
        past = self.lagged(inner, rows_back)
        return past if name == "lag" else self.function("subtract", inner, past)

    def lagged(self, node: Node, rows: int) -> Node:
        """A lag of a lag is one lag, of a constant the constant."""
        if isinstance(node, Number):
            return node
        of, rows = (node.of, rows + node.rows) if isinstance(node, Lag) else (node, rows)
        if rows > MAX_ROWS_BACK:
            raise self.error(None, f"a lag reaches {rows} rows back", f"at most {MAX_ROWS_BACK}")
        return Lag(of, rows)

    def rows_back(self, tree: ast.expr) -> int:
        rows = self.plain_number(tree, "k")
        if rows != int(rows) or not 1 <= rows <= MAX_ROWS_BACK:
            raise self.error(
                tree, f"k must be a whole number from 1 to {MAX_ROWS_BACK}, got {rows:g}", "it counts rows"
            )
        return int(rows)

    def plain_number(self, tree: ast.expr, name: str) -> float:
        node = self.node(tree, 1)
        if not isinstance(node, Number):
            raise self.error(tree, f"{name} must be a number, got {self.source(tree)}", "it cannot change")
        return node.value

    def function(self, name: str, *inputs: Node) -> Node:
        """A call; of constants alone it is a constant."""
        if all(isinstance(each, Number) for each in inputs):
            with np.errstate(all="ignore"):
                value = float(ARITHMETIC[name](*(np.float64(each.value) for each in inputs)))  # type: ignore[union-attr]  # checked above
            if not np.isfinite(value):
                raise self.error(None, f"{name} of constants is {value}", "write another number")
            return Number(value)
        return Call(name, inputs)

    def binary(self, tree: ast.BinOp, depth: int) -> Node:
        return self.operator(tree, tree.op, (tree.left, tree.right), depth)

    def unary(self, tree: ast.UnaryOp, depth: int) -> Node:
        if isinstance(tree.op, ast.UAdd):
            return self.node(tree.operand, depth)
        return self.operator(tree, tree.op, (tree.operand,), depth)

    def operator(self, tree: ast.expr, op: ast.AST, inputs: Sequence[ast.expr], depth: int) -> Node:
        if type(op) not in OPERATORS:
            raise self.error(tree, f"the operator {type(op).__name__} is not allowed", "use + - * / ** %")
        return self.function(OPERATORS[type(op)], *(self.node(each, depth) for each in inputs))

    def logic(self, tree: ast.BoolOp, depth: int) -> Node:
        name = OPERATORS[type(tree.op)]
        return self.joined(name, [self.node(each, depth) for each in tree.values])

    def joined(self, name: str, nodes: Sequence[Node]) -> Node:
        result = nodes[0]
        for each in nodes[1:]:
            result = self.function(name, result, each)
        return result

    def comparison(self, tree: ast.Compare, depth: int) -> Node:
        """`a < b < c` is `a < b and b < c`, as in Python."""
        for each in tree.ops:
            if type(each) not in OPERATORS:
                raise self.error(
                    tree, f"the comparison {type(each).__name__} is not allowed", "use < <= > >= == !="
                )
        values = [self.node(each, depth) for each in (tree.left, *tree.comparators)]
        pairs = zip(tree.ops, values[:-1], values[1:], strict=True)
        return self.joined("and", [self.function(OPERATORS[type(op)], *pair) for op, *pair in pairs])

    def condition(self, tree: ast.IfExp, depth: int) -> Node:
        return self.function(
            "where", *(self.node(each, depth) for each in (tree.test, tree.body, tree.orelse))
        )


def float_of(value: float) -> float:
    """A number as a float; a whole number beyond all of them is infinite."""
    try:
        return float(value)
    except OverflowError:
        return np.inf


_READERS: dict[type[ast.expr], Callable[..., Node]] = {
    ast.Name: _Reader.name,
    ast.Constant: _Reader.constant,
    ast.Call: _Reader.call,
    ast.BinOp: _Reader.binary,
    ast.UnaryOp: _Reader.unary,
    ast.BoolOp: _Reader.logic,
    ast.Compare: _Reader.comparison,
    ast.IfExp: _Reader.condition,
}


def children(node: Node) -> tuple[Node, ...]:
    if isinstance(node, Call):
        return node.inputs
    return (node.of,) if isinstance(node, Lag | Mean | Sum | Next) else ()


def rebuilt(node: Node, change: Callable[[Node], Node]) -> Node:
    """The same node of changed inputs."""
    if isinstance(node, Call):
        return Call(node.function, tuple(map(change, node.inputs)))
    return replace(node, of=change(node.of)) if isinstance(node, Lag | Mean | Sum | Next) else node


def walk(node: Node) -> Iterator[Node]:
    """A node and all that it is made of, what is used before what uses it."""
    for each in children(node):
        yield from walk(each)
    yield node
