"""A short run of the fuzzer: no traceback, no hang, no planted nonsense accepted."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).parents[1] / "tools" / "fuzz.py"
pytest.importorskip("pyarrow")
pytest.importorskip("h5py")


def test_damaged_files_of_every_kind() -> None:
    spec = importlib.util.spec_from_file_location("fuzz", TOOL)
    assert spec is not None and spec.loader is not None
    fuzzer = sys.modules["fuzz"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fuzzer)
    found = fuzzer.fuzz(3, seed=1)
    assert len(found) == 10
    assert all(sum(outcomes.values()) >= 3 for outcomes in found.values())
    assert fuzzer.failures(found) == []
