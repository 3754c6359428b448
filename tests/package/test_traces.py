"""What was written down still comes out: `make_traces.py` makes each trace and says when it may change."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from make_traces import FIXTURES, LEARNERS, TRACES, make
from rl_training import algorithms

CLOSE = (1e-5, 1e-6)
LOOSE = {"judgement": (5e-3, 2e-3)}
"""Relative and absolute tolerance: over hundreds of updates the rounding of a processor grows."""

NUMBER = re.compile(r"[-+]?(?:\d[\d,]*\.?\d*|\.\d+)(?:[eE][-+]?\d+)?")


@pytest.mark.parametrize("name", TRACES)
def test_trace(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    wanted = json.loads((FIXTURES / f"{name}.json").read_text(encoding="utf-8"))
    found = differences(wanted, make(name, tmp_path), LOOSE.get(name, CLOSE))
    assert not found, "\n".join(found[:20])


def test_every_algorithm_and_every_trace_is_there() -> None:
    assert {path.stem for path in FIXTURES.iterdir()} == set(TRACES)
    learners = {name.removesuffix("Algorithm") for name in dir(algorithms) if name.endswith("Algorithm")}
    assert learners == set(LEARNERS)


def test_a_difference_is_found() -> None:
    """What compares can fail: in a number, in the number of a text, in its words, in what there is."""
    wanted = {"a": [1.0, math.nan], "b": "12.5 of 3 rows", "c": True, "d": 7}
    assert not differences(wanted, {**wanted, "a": [1.000001, math.nan], "b": "12.50001 of 3 rows"}, CLOSE)
    for other in (
        {"a": [1.001, math.nan]},
        {"a": [1.0]},
        {"a": [1.0, 0.0]},
        {"b": "12.6 of 3 rows"},
        {"b": "12.5 in 3 rows"},
        {"c": 1},
        {"d": 8},
        {"e": None},
    ):
        assert len(differences(wanted, {**wanted, **other}, CLOSE)) == 1, other
    assert differences(wanted, {"a": wanted["a"]}, CLOSE)


def differences(wanted: Any, found: Any, tolerance: tuple[float, float], where: str = "") -> list[str]:
    """Where two traces differ by more than rounding; whole numbers, words and flags must be equal."""
    if type(wanted) is not type(found):
        return [f"{where}: {wanted!r} was written down, {found!r} came out"]
    if isinstance(wanted, dict):
        lost = [f"{where}/{name}: only on one side" for name in wanted.keys() ^ found.keys()]
        both = [name for name in wanted if name in found]
        return lost + [
            line
            for name in both
            for line in differences(wanted[name], found[name], tolerance, f"{where}/{name}")
        ]
    if isinstance(wanted, list) and len(wanted) == len(found):
        pairs = enumerate(zip(wanted, found, strict=True))
        return [line for index, two in pairs for line in differences(*two, tolerance, f"{where}/{index}")]
    if equal(wanted, found, tolerance):
        return []
    return [f"{where}: {wanted!r} was written down, {found!r} came out"]


def equal(wanted: Any, found: Any, tolerance: tuple[float, float]) -> bool:
    if isinstance(wanted, float):
        both_nan = math.isnan(wanted) and math.isnan(found)
        return both_nan or math.isclose(wanted, found, rel_tol=tolerance[0], abs_tol=tolerance[1])
    if isinstance(wanted, str) and wanted != found:
        return NUMBER.sub("#", wanted) == NUMBER.sub("#", found) and all(
            math.isclose(old, new, rel_tol=tolerance[0], abs_tol=tolerance[1])
            for old, new in zip(numbers(wanted), numbers(found), strict=True)
        )
    return bool(wanted == found)


def numbers(text: str) -> list[float]:
    return [float(each.replace(",", "")) for each in NUMBER.findall(text)]
