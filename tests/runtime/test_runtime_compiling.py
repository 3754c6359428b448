"""Which runs are compiled: those that are told to, those that are long enough, and what a resume keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_algorithm import go_on, offline, online
from fake_world import World
from rl_training.core.checkpoints import read_header

pytestmark = pytest.mark.usefixtures("fake_algorithms")


@pytest.fixture(autouse=True)
def eight_updates_are_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine that can compile."""
    monkeypatch.setattr("rl_training.runtime.loop.WORTHWHILE_UPDATES", 8)
    monkeypatch.setattr("rl_training.runtime.loop.missing_for_compiling", lambda device_type: None)


@pytest.mark.parametrize(
    ("setting", "steps", "compiled"),
    [("auto", 7, False), ("auto", 8, True), (True, 1, True), (False, 100, False)],
)
def test_auto_compiles_runs_that_are_long_enough(
    setting: Any, steps: int, compiled: bool, tmp_path: Path
) -> None:
    story = offline(tmp_path, compile=setting, total_timesteps=steps)
    assert story.learner.compiled_with == ("inductor" if compiled else None)
    assert read_header(story.result.run_dir)["compile"] is compiled


@pytest.mark.parametrize(("updates", "compiled"), [(1, None), (2, "inductor")])
def test_online_every_update_of_a_step_counts(updates: int, compiled: str | None, tmp_path: Path) -> None:
    story = online(tmp_path, compile="auto", total_timesteps=4, gradient_updates_per_step=updates)
    assert story.learner.compiled_with == compiled


def test_a_resumed_run_keeps_its_mode(tmp_path: Path) -> None:
    short = offline(tmp_path, compile="auto", total_timesteps=3)
    assert go_on(short, 20).learner.compiled_with is None
    world = World()
    long = online(tmp_path, world=world, compile="auto", total_timesteps=8)
    assert go_on(long, 9, world=world).learner.compiled_with == "inductor"


def test_where_nothing_can_be_compiled_the_run_says_so_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl_training.runtime.loop.missing_for_compiling", lambda device_type: "no tool")
    with pytest.warns(UserWarning, match="no tool: updates run uncompiled"):
        story = offline(tmp_path, compile=True, total_timesteps=2)
    assert story.learner.compiled_with is None and len(story.seen) == 2
