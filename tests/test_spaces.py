"""Between the environment's action units and [-1, 1]."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from rl_training.core.errors import UserError
from rl_training.core.spaces import Spaces

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
