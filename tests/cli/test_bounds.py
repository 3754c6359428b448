"""Bounds of actions as options: one number for all, or one for each."""

import pytest

from rl_training.cli.options import parse_bounds
from rl_training.core.errors import ConfigError


def test_bounds_are_named_at_once_or_one_by_one() -> None:
    assert parse_bounds(["0.1,-2"], ["10", "50"]) == ([0.1, -2.0], [10.0, 50.0])
    assert parse_bounds(["0"], None) == ([0.0], None)


def test_what_is_no_number_is_named_with_its_option() -> None:
    with pytest.raises(ConfigError, match=r"--action-high must be numbers such as 0 or 0,-1, got '1,wide'"):
        parse_bounds(["0"], ["1,wide"])
