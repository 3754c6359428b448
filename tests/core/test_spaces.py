"""Between the units of actions outside, boxes and choices, and [-1, 1]."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from rl_training.core.errors import UserError
from rl_training.core.spaces import Box, Choice, Spaces

FINITE = st.floats(-1e6, 1e6, allow_nan=False)


def test_known_values() -> None:
    spaces = Spaces(3, (-2.0, 0.0), (2.0, 100.0))
    np.testing.assert_array_equal(spaces.to_unit([[1.0, 25.0]]), [[0.5, -0.5]])
    np.testing.assert_array_equal(spaces.to_env([[0.5, -0.5], [9.0, -9.0]]), [[1.0, 25.0], [2.0, 0.0]])


@given(low=FINITE, width=st.floats(1e-3, 1e6), unit=st.lists(st.floats(-1, 1, width=32), min_size=1))
def test_actions_never_leave_the_bounds_and_survive_the_round_trip(
    low: float, width: float, unit: list[float]
) -> None:
    assume(width > 1e-5 * abs(low))  # else float32 has no number between the bounds
    spaces = Spaces(1, (low,), (low + width,))
    actions = spaces.to_env(np.array(unit)[:, None]).astype(np.float64)
    assert (actions >= low).all() and (actions <= low + width).all()
    rounding = 1e-6 + 1e-6 * max(abs(low), abs(low + width)) / width
    np.testing.assert_allclose(spaces.to_unit(actions)[:, 0], unit, atol=4 * rounding)


def test_unit_bounds_change_nothing() -> None:
    spaces = Spaces(1, (-1.0,), (1.0,))
    values = np.linspace(-1, 1, 1001, dtype=np.float32)[:, None]
    np.testing.assert_array_equal(spaces.to_env(values), values)
    np.testing.assert_array_equal(spaces.to_unit(values), values)


def test_bad_spaces_are_refused_and_dicts_round_trip() -> None:
    for bounds in (((1.0,), (1.0,)), ((0.0,), (float("inf"),)), ((0.0, 1.0), (2.0,)), ((), ())):
        with pytest.raises(UserError, match="action"):
            Spaces(2, *bounds)
    with pytest.raises(UserError, match="obs_dim must be >= 1, got 0"):
        Spaces(0, (-1.0,), (1.0,))
    spaces = Spaces(4, (-0.1, -3.0), (0.1, 5.0))
    assert Spaces.from_dict(spaces.to_dict()) == spaces


# ---- parts: boxes and choices in any order


VALVE, PUMP, MODE = Box(-2.0, 2.0), Choice(("off", "on")), Choice((0.0, 5.0, 10.0))
MIXED = Spaces.of(3, [MODE, VALVE, PUMP])


def test_a_box_and_a_choice_by_hand() -> None:
    spaces = Spaces.of(1, [VALVE, PUMP])
    assert (spaces.action_columns, spaces.action_dim) == (2, 3)
    np.testing.assert_array_equal(spaces.encode([1.0, "on"]), [0.5, -1.0, 1.0])
    np.testing.assert_array_equal(spaces.encode([[1.0, "on"], [-2.0, "off"]]), [[0.5, -1, 1], [-1, 1, -1]])
    by_place = spaces.encode(np.array([1.0, 1.0]))  # 1 stands for the second name
    np.testing.assert_array_equal(by_place, [0.5, -1.0, 1.0])
    np.testing.assert_array_equal(spaces.decode([0.5, -1.0, 1.0]), [1.0, 1.0])
    assert spaces.in_words(spaces.decode([[0.5, -1.0, 1.0], [9.0, 0.3, 0.2]])).tolist() == [
        [1.0, "on"],
        [2.0, "off"],
    ]


def test_parts_stand_in_the_order_of_their_columns() -> None:
    assert MIXED.parts == (MODE, VALVE, PUMP)
    assert (MIXED.action_low, MIXED.action_high) == ((0.0, -2.0, 0.0), (10.0, 2.0, 1.0))
    encoded = MIXED.encode([[10.0, -1.0, "off"], [5.0, 3.0, "on"]])
    np.testing.assert_array_equal(encoded, [[-1, -1, 1, -0.5, 1, -1], [-1, 1, -1, 1.5, -1, 1]])
    np.testing.assert_array_equal(MIXED.decode(encoded), [[10.0, -1.0, 0.0], [5.0, 2.0, 1.0]])
    assert MIXED.in_words(MIXED.decode(encoded))[1].tolist() == [5.0, 2.0, "on"]
    unit = np.array([[0.1, 0.4, 0.3, 0.25, -0.2, -0.1]], dtype=np.float32)
    np.testing.assert_array_equal(MIXED.decode(unit), [[5.0, 0.5, 1.0]])
    np.testing.assert_array_equal(MIXED.decode_tensor(torch.from_numpy(unit)).numpy(), [[5.0, 0.5, 1.0]])


def test_random_actions_are_on_levels_and_in_the_order_of_the_numbers() -> None:
    np.testing.assert_array_equal(MIXED.random([-1.0, 0.25, -0.01]), [1, -1, -1, 0.25, 1, -1])
    np.testing.assert_array_equal(MIXED.random([0.99, -1.0, 0.0]), [-1, -1, 1, -1.0, -1, 1])
    uniform = np.random.default_rng(0).uniform(-1, 1, (6000, 3)).astype(np.float32)
    shares = (MIXED.random(uniform) > 0).mean(axis=0)
    np.testing.assert_allclose(shares[[0, 1, 2, 4, 5]], [1 / 3, 1 / 3, 1 / 3, 0.5, 0.5], atol=0.03)
    last = np.nextafter(np.float32(1.0), np.float32(0.0))  # the largest number that is drawn
    np.testing.assert_array_equal(MIXED.random([last] * 3)[:3], [-1, -1, 1])
    boxes = Spaces(1, (-2.0, 0.0), (2.0, 9.0))
    np.testing.assert_array_equal(boxes.random([[0.5, -0.5]]), np.float32([[0.5, -0.5]]))


def test_clipping_goes_to_the_bounds_and_the_nearest_level() -> None:
    np.testing.assert_array_equal(
        MIXED.clip([[7.0, 9.0, 0.4], [99.0, -9.0, -3.0]]), [[5.0, 2.0, 0.0], [10.0, -2.0, 0.0]]
    )
    np.testing.assert_array_equal(
        Spaces(1, (-1.0,), (0.1,)).clip([[0.3]]), [[np.nextafter(np.float32(0.1), 0)]]
    )


def test_a_cell_that_is_no_level_is_named() -> None:
    for cell, shown in ((7.0, "7.0"), (np.nan, "nan")):
        with pytest.raises(UserError, match=f"an action of {shown} is not in a choice among 0, 5, 10"):
            MIXED.encode(np.array([[5.0, 0.0, 1.0], [cell, 0.0, 1.0]]))
    with pytest.raises(UserError, match="an action of 'of' is not in a choice among off, on"):
        MIXED.encode([[5.0, 0.0, "of"]])


def test_bad_levels_are_refused() -> None:
    for levels in ((), ("on",), ("on", "on"), ("on", 1.0), (0.0, float("nan"))):
        with pytest.raises(UserError, match="levels of a choice must be two or more different names, or num"):
            Choice(levels)
    with pytest.raises(UserError, match=r"levels must have one entry per action \(1\), got 2"):
        Spaces(1, (0.0,), (1.0,), choices=(PUMP, None))


def test_stored_parts_are_read_back_and_files_without_levels_stay_as_they_were() -> None:
    assert Spaces.from_dict(MIXED.to_dict()) == MIXED
    assert MIXED.to_dict()["action_levels"] == [[0.0, 5.0, 10.0], None, ["off", "on"]]
    boxes = Spaces.of(2, [Box(-1.0, 1.0)])
    assert boxes == Spaces(2, (-1.0,), (1.0,))
    assert boxes.to_dict() == {"obs_dim": 2, "action_low": [-1.0], "action_high": [1.0]}
