"""Collecting online: when actions stop being random, which updates follow, what is stored and logged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fake_algorithm import DRAWN, PER_UPDATE, Story, go_on, online
from fake_world import World
from rl_training.runs.resume import resume_training
from rl_training.runs.tracking import read_metrics
from rl_training.runtime.callbacks import Callback, Run

pytestmark = pytest.mark.usefixtures("fake_algorithms")

FIRST_SEEDS = [1185026047, 1057732440, 494419532]
"""Of the episodes of environment 0 of a run with seed 3: if they change, old runs do not resume."""


def stored(story: Story) -> dict[tuple[int, int, int], dict[str, Any]]:
    """Every row that was in a batch, by (environment, episode, time) of its observation."""
    rows = {}
    for update in story.seen:
        for index, obs in enumerate(update.batch["obs"]):
            number, episode, time = map(int, obs)
            rows[number, episode, time] = {name: values[index] for name, values in update.batch.items()}
    return rows


# ---- when updates are made

ROUNDS: dict[str, tuple[dict[str, Any], list[int]]] = {
    "one update per step": ({"total_timesteps": 4}, [1, 2, 3, 4]),
    "the first update follows the learning starts": (
        {"total_timesteps": 6, "learning_starts": 3},
        [4, 5, 6],
    ),
    "several updates per step": (
        {"total_timesteps": 3, "learning_starts": 1, "gradient_updates_per_step": 3},
        [2, 2, 2, 3, 3, 3],
    ),
    "updates per transition, not per round": ({"total_timesteps": 6, "num_envs": 3}, [3, 3, 3, 6, 6, 6]),
    "both": (
        {"total_timesteps": 4, "num_envs": 2, "gradient_updates_per_step": 2},
        [2, 2, 2, 2, 4, 4, 4, 4],
    ),
    "rounds of updates every three steps": (
        {"total_timesteps": 7, "train_frequency": 3},
        [3, 3, 3, 6, 6, 6],
    ),
    "a round earns nothing before the learning starts": (
        {"total_timesteps": 6, "train_frequency": 3, "learning_starts": 2},
        [3, 6, 6, 6],
    ),
    "the frequency counts rounds of all environments": (
        {"total_timesteps": 8, "num_envs": 2, "train_frequency": 2},
        [4, 4, 4, 4, 8, 8, 8, 8],
    ),
    "learning starts inside a round of environments": (
        {"total_timesteps": 8, "num_envs": 2, "learning_starts": 3},
        [4, 4, 6, 6, 8, 8],
    ),
    "learning starts at the end of a round": (
        {"total_timesteps": 8, "num_envs": 2, "learning_starts": 4},
        [6, 6, 8, 8],
    ),
}


@pytest.mark.parametrize("name", ROUNDS)
def test_updates_follow_collected_transitions(name: str, tmp_path: Path) -> None:
    settings, expected = ROUNDS[name]
    story = online(tmp_path, **settings)
    assert story.steps == expected
    assert story.result.metrics["gradient_steps"] == len(expected)


def test_owed_updates_survive_a_resume(tmp_path: Path) -> None:
    world = World()
    first = online(tmp_path, world=world, total_timesteps=4, train_frequency=3)
    assert first.steps == [3, 3, 3]
    assert go_on(first, 6, world=world).steps == [6, 6, 6]


# ---- which actions are played


def test_actions_are_random_until_learning_starts_and_then_the_policys(tmp_path: Path) -> None:
    world = World()
    online(tmp_path, world=world, total_timesteps=8, learning_starts=4)
    actions = [action for _, action in world.played]
    assert len(set(actions[:4])) == 4 and all(-2.0 <= action <= 2.0 for action in actions[:4])
    # The fifth step is acted before the first update; an action of the learner is doubled into [-2, 2].
    assert actions[4:] == [2.0 * (DRAWN + updates * PER_UPDATE) for updates in (0, 1, 2, 3)]


def test_with_several_environments_whole_rounds_are_random(tmp_path: Path) -> None:
    world = World()
    online(tmp_path, world=world, total_timesteps=8, num_envs=2, learning_starts=3)
    actions = [action for _, action in world.played]
    assert len(set(actions[:4])) == 4
    assert actions[4:] == [1.0 + 4 * PER_UPDATE] * 2 + [1.0 + 8 * PER_UPDATE] * 2


def test_without_a_random_phase_the_policy_acts_from_the_first_step(tmp_path: Path) -> None:
    world = World()
    online(tmp_path, world=world, total_timesteps=2)
    assert world.played == [(0, 1.0), (0, 1.0 + 2 * PER_UPDATE)]


def test_ahead_an_action_is_chosen_before_the_updates_that_follow_the_step_before_it(tmp_path: Path) -> None:
    for ahead, updates_before in ((False, [0, 1, 2, 3]), (True, [0, 0, 1, 2])):
        story = online(tmp_path / str(ahead), total_timesteps=4, collect_ahead=ahead, batch_size=50)
        assert story.steps == [1, 2, 3, 4]
        rows = stored(story)
        assert len(rows) == 4  # the rows of a step are there for the updates that follow it
        actions = [rows[place]["actions"] for place in sorted(rows)]
        np.testing.assert_allclose(actions, [[DRAWN + count * PER_UPDATE] for count in updates_before])


def test_random_actions_follow_the_seed(tmp_path: Path) -> None:
    played = []
    for seed in (3, 3, 4):
        world = World()
        online(tmp_path, world=world, seed=seed, total_timesteps=3, learning_starts=3)
        played.append([action for _, action in world.played])
    assert played[0] == pytest.approx([-0.0642614, -0.5044351, 0.7217886], abs=1e-6)
    assert played[0] == played[1] and not set(played[0]) & set(played[2])


def test_every_episode_starts_from_a_seed_of_its_own(tmp_path: Path) -> None:
    world = World()
    online(tmp_path, world=world, total_timesteps=8)
    assert world.seeds == [(0, seed) for seed in FIRST_SEEDS]
    several = World()
    online(tmp_path, world=several, total_timesteps=12, num_envs=2)
    seeds = [seed for _, seed in several.seeds]
    assert [seed for number, seed in several.seeds if number == 0] == FIRST_SEEDS
    assert len(seeds) == len(set(seeds)) == 6


def test_num_envs_environments_are_stepped_side_by_side(tmp_path: Path) -> None:
    world = World()
    online(tmp_path, world=world, num_envs=3, total_timesteps=6)
    assert [number for number, _ in world.played] == [0, 1, 2, 0, 1, 2]


# ---- what is stored


def test_truncation_ends_an_episode_and_is_no_termination(tmp_path: Path) -> None:
    """Even episodes are truncated at time 3; odd ones report both flags there, which means terminated."""
    rows = stored(online(tmp_path, total_timesteps=12, batch_size=64))
    assert len(rows) == 12
    assert {key: row["dones"] for key, row in rows.items() if row["dones"]} == {
        (0, 1, 2): 1.0,
        (0, 3, 2): 1.0,
    }
    for (number, episode, time), row in rows.items():
        assert row["next_obs"] == [number, episode, time + 1]
        assert row["rewards"] == 10.0 * episode + time + 1
    assert rows[0, 2, 0]["actions"] == [DRAWN + 6 * PER_UPDATE]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, [1.0, 2.0, 3.0, 11.0]),
        ({"reward_scale": 2.0}, [2.0, 4.0, 6.0, 22.0]),
        ({"reward_shift": -3.0}, [-2.0, -1.0, 0.0, 8.0]),
        ({"reward_clip": 2.5}, [1.0, 2.0, 2.5, 2.5]),
        ({"reward_shift": -3.0, "reward_clip": 1.5}, [-1.5, -1.0, 0.0, 1.5]),
        ({"reward_scale": 2.0, "reward_shift": -3.0, "reward_clip": [0.0, 5.0]}, [0.0, 1.0, 3.0, 5.0]),
    ],
)
def test_stored_rewards_follow_the_formula_and_returns_stay_as_they_are(
    settings: dict[str, Any], expected: list[float], tmp_path: Path
) -> None:
    """clip(scale * reward + shift) of the rewards 1, 2, 3 and 11."""
    story = online(tmp_path, total_timesteps=6, batch_size=64, eval_episodes=1, **settings)
    rows = stored(story)
    assert [
        rows[0, episode, time]["rewards"] for episode, time in ((0, 0), (0, 1), (0, 2), (1, 0))
    ] == expected
    assert [row["rollout_return_mean"] for row in story.rows("collect")] == [21.0]  # of 6 and 36
    assert story.result.metrics["eval_return_mean"] == 6.0


def test_the_buffer_holds_the_newest_transitions(tmp_path: Path) -> None:
    story = online(tmp_path, total_timesteps=9, buffer_capacity=3, batch_size=64)
    last = {tuple(map(int, obs)) for obs in story.seen[-1].batch["obs"]}
    assert last == {(0, 2, 0), (0, 2, 1), (0, 2, 2)}


def test_a_batch_has_batch_size_rows_drawn_with_replacement(tmp_path: Path) -> None:
    story = online(tmp_path, total_timesteps=2, batch_size=5)
    assert [len(update.batch["rewards"]) for update in story.seen] == [5, 5]
    assert story.seen[0].batch["rewards"] == [1.0] * 5


# ---- what is logged


def test_the_log_has_the_mean_over_episodes_finished_since_the_last_row(tmp_path: Path) -> None:
    """Returns 6, 36, 66, 96 at the steps 3, 6, 9, 12; the mean is over episodes, not over steps."""
    story = online(tmp_path, total_timesteps=13, log_interval=4)
    told = [
        (row["step"], row["rollout_return_mean"], row["rollout_episodes"]) for row in story.rows("collect")
    ]
    assert told == [(4, 6.0, 1.0), (8, 36.0, 1.0), (12, 81.0, 2.0)]
    assert story.result.metrics["rollout_return_mean"] == 81.0
    assert [row["step"] for row in story.rows("train")] == [4, 8, 12, 13]


def test_episodes_of_all_environments_are_in_the_mean(tmp_path: Path) -> None:
    world = World(reward=lambda env, action: 1.0 + env.number)
    story = online(tmp_path, world=world, num_envs=3, total_timesteps=9, log_interval=9)
    told = [(row["rollout_return_mean"], row["rollout_episodes"]) for row in story.rows("collect")]
    assert told == [(6.0, 3.0)]  # 3, 6 and 9


def test_an_episode_under_way_keeps_its_return_over_a_resume(tmp_path: Path) -> None:
    world = World()
    first = online(tmp_path, world=world, total_timesteps=5)
    second = go_on(first, 6, world=world)
    assert [row["rollout_return_mean"] for row in second.rows("collect")] == [6.0, 36.0]
    assert second.steps == [6]


class Break(Callback):
    """Ends the process, as it were, after the fifth step."""

    def on_step_end(self, run: Run) -> None:
        if run.global_step == 5:
            raise RuntimeError("power cut")


def test_episodes_not_yet_logged_are_in_the_first_row_after_a_crash(tmp_path: Path) -> None:
    """Saved at 4, broken at 5, gone on from 4: the returns 6 (step 3) and 36 (step 6) are in one row."""
    world = World()
    with pytest.raises(RuntimeError, match="power cut"):
        online(tmp_path, world=world, total_timesteps=6, checkpoint_interval=4, callbacks=[Break()])
    result = resume_training(next(tmp_path.iterdir()), env=world.make, quiet=True)
    rows = [row for row in read_metrics(result.run_dir) if row["kind"] == "collect"]
    assert [(row["step"], row["rollout_return_mean"], row["rollout_episodes"]) for row in rows] == [
        (6, 21.0, 2.0)
    ]
