"""Evaluation, checkpoints, logs and callbacks along a run, against numbers written down beforehand."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from fake_algorithm import Scripted, Story, go_on, offline, online
from fake_world import World, by_action
from rl_training.core.checkpoints import load_checkpoint, read_header
from rl_training.runs.evaluate import evaluate_checkpoint
from rl_training.runtime.callbacks import Callback, Interval, Run

pytestmark = pytest.mark.usefixtures("fake_algorithms")

SEEDS_OF_3 = [294591940, 519266166]
"""Of the first two evaluation episodes of a run with seed 3: they must never change."""


def best_step(story: Story) -> int:
    return int(
        read_header(story.result.run_dir / "checkpoints" / "best.safetensors")["counters"]["global_step"]
    )


# ---- what an evaluation is


def test_every_evaluation_plays_the_same_episodes(tmp_path: Path) -> None:
    world = World()
    offline(tmp_path, world=world, total_timesteps=4, eval_interval=2, eval_episodes=2)
    assert [seed for _, seed in world.seeds] == SEEDS_OF_3 * 2


def test_evaluation_seeds_follow_the_seed_or_eval_seed(tmp_path: Path) -> None:
    seeds = []
    for settings in ({"seed": 3}, {"seed": 4}, {"seed": 4, "eval_seed": 3}):
        world = World()
        offline(tmp_path, world=world, total_timesteps=1, eval_episodes=2, **settings)
        seeds.append([seed for _, seed in world.seeds])
    assert seeds[0] == seeds[2] == SEEDS_OF_3
    assert not set(seeds[1]) & set(SEEDS_OF_3)


@pytest.mark.parametrize(("deterministic", "base"), [(True, 1.5), (False, 3.0)])
def test_evaluation_acts_with_the_policy_of_the_moment(
    deterministic: bool, base: float, tmp_path: Path
) -> None:
    """Three steps of twice (1/4 or 1/2) + updates / 1024."""
    world = World(reward=by_action)
    settings: dict[str, Any] = {"eval_interval": 2, "eval_episodes": 2, "eval_deterministic": deterministic}
    story = offline(tmp_path, world=world, total_timesteps=4, **settings)
    told = [(row["step"], row["eval_return_mean"]) for row in story.rows("eval")]
    assert told == [(2, base + 12 / 1024), (4, base + 24 / 1024)]
    assert story.result.metrics["eval_return_mean"] == base + 24 / 1024


def test_mean_spread_and_length_are_over_episodes(tmp_path: Path) -> None:
    """Every episode has an environment of its own, with rewards of 1 and 2."""
    world = World(reward=lambda env, action: 1.0 + env.number)
    metrics = offline(tmp_path, world=world, total_timesteps=1, eval_episodes=2).result.metrics
    assert (metrics["eval_return_mean"], metrics["eval_return_std"]) == (4.5, 1.5)
    assert (metrics["eval_episodes"], metrics["eval_length_mean"]) == (2, 3.0)


def test_evaluation_leaves_training_alone(tmp_path: Path) -> None:
    """Batches are those that seed 3 draws, evaluated or not."""
    for settings in ({}, {"eval_interval": 1, "eval_episodes": 2, "eval_deterministic": False}):
        story = offline(tmp_path, world=World(), total_timesteps=2, **settings)
        assert [update.rows for update in story.seen] == [[7, 13, 19, 12], [9, 11, 18, 9]]


def test_a_resumed_run_goes_on_with_the_very_next_batch(tmp_path: Path) -> None:
    first = offline(tmp_path, total_timesteps=1)
    assert [update.rows for update in (*first.seen, *go_on(first, 2).seen)] == [
        [7, 13, 19, 12],
        [9, 11, 18, 9],
    ]


def test_a_checkpoint_is_evaluated_as_the_run_was(tmp_path: Path) -> None:
    world = World(reward=by_action)
    story = offline(tmp_path, world=world, total_timesteps=4, eval_episodes=2)
    again = World(reward=by_action)
    told = evaluate_checkpoint(story.result.run_dir, env=again.make)
    assert told["eval_return_mean"] == 1.5 + 24 / 1024
    assert [seed for _, seed in again.seeds] == SEEDS_OF_3


# ---- when


@pytest.mark.parametrize(
    ("total", "interval", "steps"),
    [(10, 4, [4, 8, 10]), (8, 4, [4, 8]), (3, 1, [1, 2, 3]), (10, 0, [10]), (3, 5, [3])],
)
def test_evaluation_comes_at_its_interval_and_once_at_the_end(
    total: int, interval: int, steps: list[int], tmp_path: Path
) -> None:
    scripted = Scripted(*range(5))
    offline(tmp_path, total_timesteps=total, eval_interval=interval, evaluators=[scripted])
    assert scripted.steps == steps


def test_a_step_over_a_mark_does_not_miss_it(tmp_path: Path) -> None:
    """Three environments: steps 3, 6, 9, 12, 15 against the marks 4, 8, 12."""
    scripted = Scripted(*range(5))
    settings: dict[str, Any] = {"eval_interval": 4, "log_interval": 4, "checkpoint_interval": 4}
    story = online(
        tmp_path, num_envs=3, total_timesteps=15, evaluators=[scripted], keep_checkpoints=9, **settings
    )
    assert scripted.steps == [6, 9, 12, 15]
    assert [row["step"] for row in story.rows("train")] == [6, 9, 12, 15]
    assert story.checkpoints == ["best", "step_12", "step_15", "step_6", "step_9"]


def test_an_interval_counts_marks_and_not_steps_since_the_last_time() -> None:
    interval = Interval(10)
    interval.start(7)
    steps = [9, 10, 11, 19, 25, 29, 30, 55, 59, 60]
    assert [step for step in steps if interval.due(step)] == [10, 25, 30, 55, 60]
    assert not any(Interval(0).due(step) for step in range(5))


def test_a_resumed_run_goes_on_with_the_marks(tmp_path: Path) -> None:
    first = offline(tmp_path, total_timesteps=6, eval_interval=4, evaluators=[Scripted(1, 1)])
    scripted = Scripted(1, 1, 1)
    go_on(first, 13, evaluators=[scripted])
    assert scripted.steps == [8, 12, 13]


def test_a_step_that_was_evaluated_is_not_evaluated_again_after_a_resume(tmp_path: Path) -> None:
    first = offline(tmp_path, total_timesteps=4, eval_interval=4, evaluators=[Scripted(1)])
    scripted = Scripted(7)
    second = go_on(first, 4, evaluators=[scripted])
    assert scripted.steps == []
    assert second.result.metrics["eval_return_mean"] == 1


class Interrupt(Callback):
    """Ctrl-C after the second step."""

    def on_step_end(self, run: Run) -> None:
        if run.global_step == 2:
            os.kill(os.getpid(), signal.SIGINT)


def test_an_interrupted_run_saves_and_leaves_out_the_closing_evaluation(tmp_path: Path) -> None:
    scripted = Scripted(1)
    story = offline(tmp_path, evaluators=[scripted], callbacks=[Interrupt()])
    assert (story.result.metrics["stop_reason"], story.result.metrics["signal"]) == ("signal 2", 2)
    assert (scripted.steps, story.checkpoints) == ([], ["step_2"])


# ---- checkpoints


@pytest.mark.parametrize(
    ("values", "step"),
    [([1, 3, 2, 0], 2), ([1, 3, 3, 2], 2), ([4, 3, 2, 1], 1), ([-9, -8, -7, -6], 4), ([None, 1, 1, None], 2)],
)
def test_the_best_checkpoint_is_the_first_of_the_best(
    values: list[float | None], step: int, tmp_path: Path
) -> None:
    story = offline(tmp_path, total_timesteps=4, eval_interval=1, evaluators=[Scripted(*values)])
    assert best_step(story) == step
    best = load_checkpoint(story.result.run_dir / "checkpoints" / "best.safetensors")
    assert float(best["policy"]["tensors"]["updates"]) == step


@pytest.mark.parametrize(("value", "step"), [(2.0, 2), (3.0, 2), (3.5, 4)])
def test_a_resumed_run_remembers_its_best(value: float, step: int, tmp_path: Path) -> None:
    first = offline(tmp_path, total_timesteps=3, eval_interval=1, evaluators=[Scripted(1, 3, 2)])
    assert best_step(go_on(first, 4, evaluators=[Scripted(value)])) == step


def test_a_closing_evaluation_can_be_the_best(tmp_path: Path) -> None:
    story = offline(tmp_path, total_timesteps=3, eval_interval=2, evaluators=[Scripted(1, 5)])
    assert best_step(story) == 3


def test_no_best_checkpoint_unless_asked_for(tmp_path: Path) -> None:
    story = offline(tmp_path, eval_interval=5, save_best=False, evaluators=[Scripted(1, 2)])
    assert story.checkpoints == ["step_10"]


@pytest.mark.parametrize(
    ("interval", "keep", "expected"),
    [
        (2, 2, ["step_6", "step_7"]),
        (2, 1, ["step_7"]),
        (3, 3, ["step_3", "step_6", "step_7"]),
        (0, 3, ["step_7"]),
        (7, 3, ["step_7"]),
    ],
)
def test_checkpoints_come_at_their_interval_and_the_newest_are_kept(
    interval: int, keep: int, expected: list[str], tmp_path: Path
) -> None:
    story = offline(tmp_path, total_timesteps=7, checkpoint_interval=interval, keep_checkpoints=keep)
    assert story.checkpoints == expected
    assert story.result.checkpoint_path == story.result.run_dir / "checkpoints" / "step_7.safetensors"


def test_only_the_newest_checkpoint_has_the_replay_rows(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"checkpoint_interval": 2, "eval_interval": 2}
    story = online(tmp_path, total_timesteps=6, evaluators=[Scripted(1, 2, 3)], **settings)
    folder = story.result.run_dir / "checkpoints"
    having = {file.stem for file in folder.iterdir() if "replay" in read_header(file)}
    assert having == {"step_6"} and len(story.checkpoints) == 4
    assert len(load_checkpoint(folder / "step_6.safetensors")["replay"]["rewards"]) == 6
