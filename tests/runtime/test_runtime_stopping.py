"""What ends a run: early stopping, budgets of updates and epochs, and a stop inside a round of updates."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_algorithm import Scripted, Story, fake_config, go_on, offline, online
from fake_world import World
from rl_training.core.errors import ConfigError
from rl_training.runtime.callbacks import Callback, Run

pytestmark = pytest.mark.usefixtures("fake_algorithms")

NO_PROGRESS = "eval_return_mean did not improve for 2 evaluations"


def watched(output_dir: Path, values: list[float | None], **rule: Any) -> Story:
    """A run that is evaluated after every step with these values, and stops by this rule."""
    return offline(
        output_dir,
        total_timesteps=len(values),
        eval_interval=1,
        early_stopping=rule,
        evaluators=[Scripted(*values, name=rule.get("metric", "eval_return_mean"))],
    )


def ending(story: Story) -> tuple[int, str]:
    return story.result.metrics["global_step"], story.result.metrics["stop_reason"]


RULES: dict[str, tuple[list[float | None], dict[str, Any], tuple[int, str]]] = {
    "two evaluations without progress": ([1, 2, 2, 1, 9], {"patience": 2}, (4, NO_PROGRESS)),
    "patience starts anew with progress": ([1, 0, 2, 1, 1, 9], {"patience": 2}, (5, NO_PROGRESS)),
    "never without progress for long enough": ([1, 0, 2, 1, 3, 2], {"patience": 2}, (6, "finished")),
    "patience of one": (
        [1, 1, 9],
        {"patience": 1},
        (2, "eval_return_mean did not improve for 1 evaluations"),
    ),
    "less is better": ([5, 4, 3, 3, 4, 0], {"patience": 2, "mode": "min"}, (5, NO_PROGRESS)),
    "more is better": ([5, 4, 3, 3, 4, 0], {"patience": 2, "mode": "max"}, (3, NO_PROGRESS)),
    "progress of exactly min_delta is none": (
        [1, 1.25, 1.5, 9],
        {"patience": 2, "min_delta": 0.5},
        (3, NO_PROGRESS),
    ),
    "small steps add up to progress": (
        [1, 1.25, 1.75, 2, 2.25, 9],
        {"patience": 2, "min_delta": 0.5},
        (5, NO_PROGRESS),
    ),
    "min_delta downwards": (
        [2, 1.75, 1.25, 1, 0.75, 0],
        {"patience": 2, "min_delta": 0.5, "mode": "min"},
        (5, NO_PROGRESS),
    ),
    "a target reached exactly": ([1, 2, 3, 4], {"target": 3.0}, (3, "eval_return_mean reached 3")),
    "a target from above": (
        [3, 2, 1, 0],
        {"target": 1.5, "mode": "min"},
        (3, "eval_return_mean reached 1.5"),
    ),
    "a target never reached": ([1, 2], {"target": 3.0}, (2, "finished")),
    "another metric": (
        [1, 1, 9],
        {"metric": "score", "patience": 1},
        (2, "score did not improve for 1 evaluations"),
    ),
    "evaluations without the metric do not count": (
        [None, 1, None, 0, 0, 9],
        {"patience": 2},
        (5, NO_PROGRESS),
    ),
}


@pytest.mark.parametrize("name", RULES)
def test_early_stopping(name: str, tmp_path: Path) -> None:
    values, rule, expected = RULES[name]
    assert ending(watched(tmp_path, values, **rule)) == expected


def test_by_default_five_evaluations_without_progress_end_a_run(tmp_path: Path) -> None:
    assert ending(watched(tmp_path, [1, 1, 1, 1, 1, 1, 9]))[0] == 6


def test_the_closing_evaluation_does_not_count(tmp_path: Path) -> None:
    """Scheduled at 2 and 4, closed at 5; resumed, the one at 6 is the second without progress."""
    settings: dict[str, Any] = {"eval_interval": 2, "early_stopping": {"patience": 2}}
    first = offline(tmp_path, total_timesteps=5, evaluators=[Scripted(1, 1, 1)], **settings)
    assert ending(first) == (5, "finished")
    assert ending(go_on(first, 10, evaluators=[Scripted(1, 1, 1)])) == (6, NO_PROGRESS)


def test_a_good_closing_evaluation_is_not_what_a_resumed_run_is_measured_by(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eval_interval": 2, "early_stopping": {"patience": 1, "target": 50.0}}
    first = offline(tmp_path, total_timesteps=3, evaluators=[Scripted(1, 99)], **settings)
    assert ending(first) == (3, "finished")
    assert ending(go_on(first, 6, evaluators=[Scripted(2, 3)])) == (6, "finished")


def test_patience_survives_a_resume(tmp_path: Path) -> None:
    settings: dict[str, Any] = {"eval_interval": 1, "early_stopping": {"patience": 3}}
    first = offline(tmp_path, total_timesteps=3, evaluators=[Scripted(5, 4, 4)], **settings)
    assert ending(go_on(first, 10, evaluators=[Scripted(4, 4)]))[0] == 4


# ---- budgets


@pytest.mark.parametrize(
    ("budget", "updates", "reason"),
    [
        ({"max_updates": 7}, 7, "update budget reached"),
        ({"max_updates": 1}, 1, "update budget reached"),
        ({"max_updates": 11}, 10, "finished"),
        ({"max_epochs": 2}, 8, "update budget reached"),
        ({"max_epochs": 2, "max_updates": 3}, 3, "update budget reached"),
        ({"max_epochs": 1, "max_updates": 9}, 4, "update budget reached"),
    ],
)
def test_a_budget_ends_an_offline_run(
    budget: dict[str, int], updates: int, reason: str, tmp_path: Path
) -> None:
    """20 rows in batches of 6 are four updates per epoch."""
    story = offline(tmp_path, batch_size=6, **budget)
    assert len(story.seen) == story.result.metrics["gradient_steps"] == updates
    assert ending(story) == (updates, reason)


def test_a_spent_budget_allows_no_more_updates_after_a_resume(tmp_path: Path) -> None:
    first = offline(tmp_path, max_updates=7)
    second = go_on(first, 20)
    assert second.seen == []
    assert ending(second) == (7, "update budget reached")


def test_a_budget_ends_an_online_run_inside_a_round(tmp_path: Path) -> None:
    """Two environments and three updates per transition: six updates a round."""
    story = online(tmp_path, num_envs=2, gradient_updates_per_step=3, max_updates=8)
    assert story.steps == [2] * 6 + [4] * 2
    assert ending(story) == (4, "update budget reached")


def test_epochs_mean_nothing_online(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="max_epochs must be null online"):
        fake_config("fake_online", tmp_path, max_epochs=2)


class StopAfter(Callback):
    """Asks for the end after so many updates."""

    def __init__(self, updates: int) -> None:
        self.updates = updates

    def on_update_end(self, run: Run, result: Any) -> None:
        if run.gradient_steps == self.updates:
            run.request_stop("enough")
            run.request_stop("really")


def test_the_updates_left_of_a_round_are_made_after_a_resume(tmp_path: Path) -> None:
    world = World()
    first = online(
        tmp_path, world=world, total_timesteps=3, gradient_updates_per_step=3, callbacks=[StopAfter(4)]
    )
    assert first.steps == [1, 1, 1, 2]
    assert ending(first) == (2, "enough")
    second = go_on(first, 3, world=world)
    assert second.steps == [2, 2, 3, 3, 3]
    assert [update.updates for update in second.seen] == [4, 5, 6, 7, 8]


def test_a_total_that_is_no_multiple_of_the_environments_is_reached_by_whole_rounds(tmp_path: Path) -> None:
    story = online(tmp_path, num_envs=3, total_timesteps=7)
    assert story.result.metrics["global_step"] == story.result.metrics["env_steps"] == 9
