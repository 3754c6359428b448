"""Signals: what every function means by numbers worked out by hand, and log = step for any program."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.core import signals
from rl_training.core.errors import UserError
from rl_training.core.expressions import parse, split_list
from rl_training.core.over_log import LogRows, OverLog, rows_since_start
from rl_training.core.signals import Program

X = np.array([1, 2, 4, 7, 3, 5], np.float32)
A = np.array([10, 30, 20, 60, 40, 20], np.float32)
ENDS = np.array([0, 0, 0, 1, 0, 1], dtype=bool)
MEAN = 30.0


def over_log(*texts: str) -> Any:
    program = Program(texts, ("x",), ("a",))
    return program.over_log(X[:, None], A[:, None], rows_since_start(ENDS), [MEAN]).T


def step_by_step(
    program: Program, obs: Any, actions: Any, ends: Any, first_action: Any
) -> tuple[Any, list[Any]]:
    """As a machine would: one row at a time, told what was done before it."""
    nothing = np.zeros((1, program.layout.size))
    state, last, first, rows, states = nothing, np.array([first_action]), True, [], []
    for row in range(len(obs)):
        found, state = program.step(obs[row : row + 1], last, state, np.array([first]))
        rows.append(found[0])
        states.append(state[0])
        last, first = actions[row : row + 1], False
        if ends[row]:
            state, last, first = nothing, np.array([first_action]), True
    return np.array(rows), states


# N19
NUMBERS = {
    "x": (1, 2, 4, 7, 3, 5),
    "lag(x)": (1, 1, 2, 4, 3, 3),
    "lag(x, 2)": (1, 1, 1, 2, 3, 3),
    "lag(lag(x), k=1)": (1, 1, 1, 2, 3, 3),
    "diff(x)": (0, 1, 2, 3, 0, 2),
    "mean(x, 2)": (1, 1.5, 2.75, 4.875, 3, 4),
    "sum(x - 2, -3, 4)": (-1, -1, 1, 4, 1, 4),
    "sum(x - 2)": (-1, -1, 1, 6, 1, 4),
    "steps()": (0, 1, 2, 3, 0, 1),
    "lag(a)": (30, 10, 30, 20, 30, 40),
    "lag(a, 2)": (30, 30, 10, 30, 30, 30),
    "lag(lag(a))": (30, 30, 10, 30, 30, 30),
    "lag(a - x)": (29, 9, 28, 16, 27, 37),
    "lag(diff(a))": (0, -20, 20, -10, 0, 10),
    "lag(x + mean(x, 2))": (2, 2, 3.5, 6.75, 6, 6),
    "x if x > 2 else -x": (-1, -2, 4, 7, 3, 5),
    "1 < x <= 4 and not x == 3": (0, 1, 1, 0, 0, 0),
    "clip(x, 2, 4) + max(x, 3, 6) % 4": (4, 4, 6, 7, 5, 6),
    "where(x >= 4, sqrt(x * x), abs(0 - x) ** 2)": (1, 4, 4, 7, 9, 5),
    "min(x, 2) or x < 0": (1, 1, 1, 1, 1, 1),
    "log(exp(x)) + cos(0 * x) - sin(0 * x)": (2, 3, 5, 8, 4, 6),
}


@pytest.mark.parametrize("text", NUMBERS)
def test_every_function_gives_the_numbers_worked_out_by_hand(text: str) -> None:
    np.testing.assert_allclose(over_log(text)[0], NUMBERS[text], atol=1e-6)


def test_lags_are_a_list_and_stand_for_each_lag() -> None:
    np.testing.assert_array_equal(over_log("x", "lags(a, 2)"), over_log("x", "lag(a, 1)", "lag(a, 2)"))


def test_the_leak_of_the_action_to_be_chosen_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """The classic fault: the first past action filled with the episode's first, as other columns are."""

    def tells_the_action() -> bool:
        first = rows_since_start(ENDS) == 0
        return bool((over_log("lag(a)", "lag(a, 2)")[:, first] == A[first]).any())

    assert not tells_the_action()
    monkeypatch.setattr(
        signals, "LogRows", lambda columns, since_start, fill: LogRows(columns, since_start, {})
    )
    assert tells_the_action()


def test_what_comes_next_is_known_to_a_log_alone() -> None:
    rows = LogRows({"x": X, "a": A}, rows_since_start(ENDS), {"a": MEAN})
    over = OverLog(rows)
    np.testing.assert_array_equal(
        over.value(parse("next(x) - x", ["x", "a"]).node), [1, 2, 3, np.nan, 2, np.nan]
    )
    np.testing.assert_array_equal(
        over.value(parse("abs(a - lag(a))", ["x", "a"]).node), [20, 20, 10, 40, 10, 20]
    )


# ---- log = step

leaves = st.sampled_from(["x", "y", "lag(a)", "lag(b, 3)", "2", "0.1"])


def compound(inner: Any) -> Any:
    return st.one_of(
        st.builds("({} {} {})".format, inner, st.sampled_from(["+", "-", "*", "<", "and"]), inner),
        st.builds("lag({}, {})".format, inner, st.integers(1, 4)),
        st.builds("diff({})".format, inner),
        st.builds("mean({}, {})".format, inner, st.integers(1, 5)),
        st.builds("sum({}, {}, {})".format, inner, st.floats(-3, -0.1), st.floats(0.1, 3)),
        st.builds("clip({}, -5, 5) / (1 + steps())".format, inner),
        st.builds("where({} > 1, {}, {})".format, inner, inner, inner),
    )


formulas = st.recursive(leaves, compound, max_leaves=5).map("x + {}".format)


@settings(max_examples=60, deadline=None)
@given(st.lists(formulas, min_size=1, max_size=4), st.integers(0, 10**6))
def test_a_log_at_once_is_a_log_step_by_step(texts: list[str], seed: int) -> None:
    program = Program(tuple(texts), ("x", "y"), ("a", "b"))
    rng = np.random.default_rng(seed)
    obs, actions = (rng.normal(size=(25, 2)).astype(np.float32) for _ in range(2))
    ends, first = rng.random(25) < 0.2, rng.normal(size=2).astype(np.float32)
    before, signals.SEGMENT_ROWS = signals.SEGMENT_ROWS, int(rng.integers(2, 26))
    try:
        log = (obs, actions, rows_since_start(ends), first.tolist())
        at_once, states = program.over_log(*log), program.states_over_log(*log)
        followed = program.after_rows(obs[::-1], *log)
    finally:
        signals.SEGMENT_ROWS = before
    rows, stepped = step_by_step(program, obs, actions, ends, first)
    np.testing.assert_allclose(at_once, rows, rtol=1e-6, atol=1e-6)
    np.testing.assert_allclose(states, stepped, rtol=1e-6, atol=1e-9)
    wanted = program.step(obs[::-1], actions, np.array(stepped), np.zeros(25, dtype=bool))[0]
    np.testing.assert_allclose(followed, wanted, rtol=1e-6, atol=1e-6)


def test_a_threshold_is_compared_in_the_precision_of_observations() -> None:
    program = Program(("level > 2.4",), ("level",), ("a",))
    level = np.array([[2.4], [2.4001]], np.float32)
    np.testing.assert_array_equal(
        program.step(level, level, np.zeros((2, 0)), np.ones(2, bool))[0], [[0], [1]]
    )


# ---- what is refused, and how it is said

NAMES = ["T_tank", "T_set", "valve", "T tank (°C)"]
REFUSED = {
    "T_tnk - 1": "no column 'T_tnk' (did you mean 'T_tank'?) at position 1; it has T_tank, T_set",
    "T_tank.real": "a name with dots is written in backticks: `a.b`) is not allowed at position 1",
    "1 + T_tank[0]": "a subscript (an earlier row is lag(x, k)) is not allowed at position 5",
    "__import__('os')": "no function '__import__' at position 1",
    "(lambda: 1)()": "something else than a name is called at position 1",
    "[x for x in valve]": "ListComp of Python is not allowed",
    "T_tank if 'a' else 1": "'a' is no number at position 11",
    "diffs(T_tank)": "no function 'diffs' (did you mean 'diff'?)",
    "lag(T_tank, 0)": "k must be a whole number from 1 to 1000, got 0",
    "lag(T_tank, valve)": "k must be a number, got valve",
    "lag(T_tank, 600) + lag(lag(T_tank, 600), 600)": "a lag reaches 1200 rows back; at most 1000",
    "mean(T_tank)": "mean is written mean(x, n) at position 1; got mean(T_tank)",
    "sum(T_tank, 3, 3)": "a sum must have low < high, got 3, 3",
    "1 + lags(T_tank, 2)": "lags(x, k) gives k values and stands alone among observations at position 5",
    "lag(next(T_tank))": "next inside lag",
    "T_tank +": "not understood at position",
    "`T_tank": "a backtick is not closed",
    "T_tank // 2": "the operator FloorDiv is not allowed",
    "T_tank in 3": "the comparison In is not allowed",
    "1 / 0": "divide of constants is inf",
    "1e400": "inf is no number",
    "lag": "lag is a function at position 1; call it: lag(x, k=1)",
    "+".join(["T_tank"] * 400): "must have at most 2000 characters",
    "+".join(["1"] * 400) + "+valve": "too large (at most 300 parts, nested 40 deep)",
    "-" * 100 + "valve": "too large",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_refused_expression_is_named_with_the_place_the_rule_and_the_remedy(text: str) -> None:
    with pytest.raises(UserError) as problem:
        parse(text, NAMES)
    told = str(problem.value)
    assert told.startswith("expression ") and REFUSED[text] in told and "\n" not in told


@pytest.mark.parametrize(
    ("text", "told"),
    {
        "valve - T_tank": "valve is an action, which is what is to be decided; an observation may have",
        "diff(valve)": "lag(valve)",
        "mean(valve, 3)": "valve is an action",
        "lag(mean(valve, 3))": "valve is an action",
        "next(T_tank)": "next(x) is not known when the policy is asked",
        "2 * 3": "a constant says nothing",
    }.items(),
)
def test_an_observation_knows_neither_the_action_nor_the_future(text: str, told: str) -> None:
    with pytest.raises(UserError, match="expression ") as problem:
        Program((text,), ("T_tank",), ("valve",))
    assert told in str(problem.value)


def test_names_of_any_kind_stand_in_backticks_and_an_entry_may_be_such_a_name() -> None:
    node = parse("lag(`T tank (°C)`, 2) - T_set", NAMES).node
    assert parse(" lag(`T tank (°C)`,2)\n - T_set", NAMES).node == node
    assert parse("T tank (°C)", NAMES).node == parse("`T tank (°C)`", NAMES).node
    with pytest.raises(UserError, match=r"no column 'T_sett' .* at position 17"):
        parse("`T tank (°C)` + T_sett", NAMES)


def test_a_list_is_split_where_no_bracket_is_open() -> None:
    text = "a, lags(b, 3), `c, d`, pump{0,1} ,,e[1,2]"
    assert split_list(text) == ["a", "lags(b, 3)", "`c, d`", "pump{0,1}", "e[1,2]"]
