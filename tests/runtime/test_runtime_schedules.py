"""Learning rates along a run: warm-up, schedules, groups, separate rates, and what a resume keeps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_algorithm import Story, fake_config, go_on, offline, online
from fake_world import World, numbered_rows
from rl_training.config.run import TrainConfig
from rl_training.core.checkpoints import load_checkpoint
from rl_training.core.errors import ConfigError
from rl_training.runs.train import train
from rl_training.runtime.callbacks import Callback, Run

pytestmark = pytest.mark.usefixtures("fake_algorithms")

COSINE_OF_FOUR = [1.0, 0.8535534, 0.5, 0.1464466]


def about(values: list[float]) -> Any:
    return pytest.approx(values, rel=1e-5, abs=1e-9)


SCHEDULES: dict[str, tuple[dict[str, Any], list[float]]] = {
    "constant": ({"total_timesteps": 3}, [1.0, 1.0, 1.0]),
    "warm-up, then constant": (
        {"total_timesteps": 7, "warmup_steps": 4},
        [0.25, 0.5, 0.75, 1.0, 1.0, 1.0, 1.0],
    ),
    "warm-up of one step": ({"total_timesteps": 2, "warmup_steps": 1}, [1.0, 1.0]),
    "linear over the whole run": (
        {"total_timesteps": 5, "learning_rate_schedule": "linear"},
        [1.0, 0.8, 0.6, 0.4, 0.2],
    ),
    "linear behind a warm-up, zero past its end": (
        {
            "total_timesteps": 8,
            "learning_rate_schedule": "linear",
            "warmup_steps": 2,
            "schedule_steps": 6,
        },
        [0.5, 1.0, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0],
    ),
    "linear that spans more than the run": (
        {"total_timesteps": 3, "learning_rate_schedule": "linear", "schedule_steps": 10},
        [1.0, 0.9, 0.8],
    ),
    "cosine, zero past its end": (
        {"total_timesteps": 6, "learning_rate_schedule": "cosine", "schedule_steps": 4},
        [*COSINE_OF_FOUR, 0.0, 0.0],
    ),
    "cosine behind a warm-up": (
        {
            "total_timesteps": 6,
            "learning_rate_schedule": "cosine",
            "warmup_steps": 2,
            "schedule_steps": 6,
        },
        [0.5, 1.0, *COSINE_OF_FOUR],
    ),
}


@pytest.mark.parametrize("name", SCHEDULES)
def test_rates_follow_the_schedule(name: str, tmp_path: Path) -> None:
    settings, expected = SCHEDULES[name]
    story = offline(tmp_path, learning_rate=2.0, **settings)
    for part in ("actor", "critic", "value"):
        assert story.rates(part) == about([2.0 * scale for scale in expected])


@pytest.mark.parametrize(
    ("group", "falling", "standing"),
    [
        ("actor", ["actor"], ["critic", "value"]),
        ("critic", ["critic", "value"], ["actor"]),
        ("all", ["actor", "critic", "value"], []),
    ],
)
def test_only_the_chosen_group_follows(
    group: str, falling: list[str], standing: list[str], tmp_path: Path
) -> None:
    story = offline(
        tmp_path,
        learning_rate=1.0,
        total_timesteps=4,
        learning_rate_schedule="linear",
        schedule_groups=group,
    )
    for part in falling:
        assert story.rates(part) == about([1.0, 0.75, 0.5, 0.25])
    for part in standing:
        assert story.rates(part) == about([1.0, 1.0, 1.0, 1.0])


def test_a_group_that_the_learner_does_not_declare_is_refused(tmp_path: Path) -> None:
    kwargs = {"schedule_groups": "critic", "action_low": [-1.0], "action_high": [1.0]}
    config = TrainConfig(algo="bc", total_timesteps=5, output_dir=str(tmp_path), algo_kwargs=kwargs)
    with pytest.raises(ConfigError) as caught:
        train(config, dataset=numbered_rows(), quiet=True)
    assert str(caught.value) == "algo_kwargs.schedule_groups must be all or actor for bc, got 'critic'"


@pytest.mark.parametrize(
    ("given", "actor", "critic"),
    [
        ({}, 0.3, 0.3),
        ({"actor_learning_rate": 0.1}, 0.1, 0.3),
        ({"critic_learning_rate": 0.2}, 0.3, 0.2),
        ({"actor_learning_rate": 0.1, "critic_learning_rate": 0.2}, 0.1, 0.2),
    ],
)
def test_actor_and_critics_have_rates_of_their_own(
    given: dict[str, float], actor: float, critic: float, tmp_path: Path
) -> None:
    story = offline(tmp_path, learning_rate=0.3, total_timesteps=2, learning_rate_schedule="linear", **given)
    assert story.rates("actor") == about([actor, actor / 2])
    assert story.rates("critic") == about([critic, critic / 2])
    assert story.rates("value") == about([critic, critic / 2])


def test_online_the_schedule_counts_environment_steps(tmp_path: Path) -> None:
    story = online(
        tmp_path, learning_rate=1.0, total_timesteps=8, num_envs=2, learning_rate_schedule="linear"
    )
    assert story.rates() == about([1.0, 1.0, 0.75, 0.75, 0.5, 0.5, 0.25, 0.25])


def test_a_resumed_run_keeps_the_span_of_the_first(tmp_path: Path) -> None:
    first = offline(tmp_path, learning_rate=1.0, total_timesteps=4, learning_rate_schedule="linear")
    second = go_on(first, 6)
    assert second.rates() == about([0.0, 0.0])
    assert load_checkpoint(second.result.run_dir)["schedule_steps"] == 4
    assert go_on(second, 8).rates() == about([0.0, 0.0])


def test_a_resumed_run_goes_on_along_a_given_span(tmp_path: Path) -> None:
    first = offline(
        tmp_path, learning_rate=1.0, total_timesteps=3, learning_rate_schedule="linear", schedule_steps=8
    )
    assert first.rates() == about([1.0, 0.875, 0.75])
    assert go_on(first, 6).rates() == about([0.625, 0.5, 0.375])


def test_a_resumed_warm_up_goes_on_rising(tmp_path: Path) -> None:
    first = offline(tmp_path, learning_rate=1.0, total_timesteps=2, warmup_steps=4, schedule_steps=4)
    assert go_on(first, 6).rates() == about([0.75, 1.0, 1.0, 1.0])


class HalveTheActor(Callback):
    """A user's own change of the learning rate, once, before the third update."""

    def on_step_start(self, run: Run) -> None:
        if run.gradient_steps == 2:
            run.trainer.learner.set_learning_rate_scale(0.5, "actor")


def test_learning_rates_are_restored(tmp_path: Path) -> None:
    first = offline(tmp_path, learning_rate=1.0, total_timesteps=4, callbacks=[HalveTheActor()])
    assert first.rates() == about([1.0, 1.0, 0.5, 0.5])
    second = go_on(first, 6)
    assert second.rates("actor") == about([0.5, 0.5])
    assert second.rates("critic") == about([1.0, 1.0])


def test_a_warm_up_longer_than_the_schedule_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"warmup_steps must be <= schedule_steps \(5\), got 6"):
        fake_config("fake_offline", tmp_path, warmup_steps=6, schedule_steps=5)


def test_the_learner_counts_its_updates_and_hears_the_step(tmp_path: Path) -> None:
    first = offline(tmp_path, total_timesteps=3)
    assert numbers(first) == [(0, 0), (1, 1), (2, 2)]
    assert numbers(go_on(first, 5)) == [(3, 3), (4, 4)]
    world = World()
    third = online(tmp_path, world=world, total_timesteps=4, num_envs=2, learning_starts=2)
    assert numbers(third) == [(4, 0), (4, 1)]
    assert numbers(go_on(third, 6, world=world)) == [(6, 2), (6, 3)]


def numbers(story: Story) -> list[tuple[int, int]]:
    return [(update.global_step, update.updates) for update in story.seen]
