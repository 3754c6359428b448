"""The library of a run's products: recorded, kept on resume, chosen anew by a run of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fake_algorithm import go_on, offline
from rl_training.core.checkpoints import newest_checkpoint, read_header
from rl_training.core.errors import ConfigError
from rl_training.runs.resume import state_at_the_border
from rl_training.runs.saved import SavedRun

pytestmark = pytest.mark.usefixtures("fake_algorithms")


@pytest.fixture(autouse=True)
def every_library_is_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl_training.core.products.is_safe", lambda library: True)
    monkeypatch.setattr("rl_training.algorithms.learner.is_safe", lambda library: True)


@pytest.mark.parametrize(("given", "used"), [({}, "mkl"), ({"products": "onednn"}, "onednn")])
def test_the_library_is_recorded_and_a_resumed_run_keeps_it(
    given: dict[str, Any], used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = offline(tmp_path, total_timesteps=3, **given)
    summary = json.loads((story.result.run_dir / "summary.json").read_text())
    header = read_header(story.result.run_dir)
    assert story.learner.products == summary["products"] == header["learner"]["products"] == used
    assert summary["processor"] == header["processor"]
    monkeypatch.setattr("rl_training.algorithms.learner.fastest", lambda shape: "onednn")
    assert go_on(story, 5).learner.products == used
    file = newest_checkpoint(story.result.run_dir / "checkpoints")
    assert file is not None
    assert state_at_the_border(SavedRun(file))["learner"]["products"] is None


def test_on_another_processor_a_resumed_run_says_that_numbers_round_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = offline(tmp_path, total_timesteps=3)
    monkeypatch.setattr("rl_training.runs.train.processor", lambda: "a newer one")
    with pytest.warns(
        UserWarning, match="saved on another processor, .* on this one, a newer one, .* not bit"
    ):
        go_on(story, 5)


def test_a_library_that_would_round_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.core.products.is_safe", lambda library: library == "mkl")
    with pytest.raises(ConfigError, match="products must be auto or mkl"):
        offline(tmp_path, total_timesteps=3, products="onednn")


def test_where_rounding_to_bf16_gains_nothing_a_run_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.runs.train.computes_bf16", lambda: False)
    with pytest.warns(UserWarning, match="precision: bf16 is slower than single on this processor"):
        offline(tmp_path, total_timesteps=3, precision="bf16")
