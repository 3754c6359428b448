"""What callbacks do along a run: their order and state, schedules, budgets and stopping."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_algorithm import Scripted, Story, fake_config, go_on, offline, online
from fake_world import World, by_action, numbered_rows
from rl_training.config.run import TrainConfig
from rl_training.core.checkpoints import load_checkpoint
from rl_training.core.errors import ConfigError
from rl_training.runs.train import train
from rl_training.runtime.callbacks import Callback, Run

pytestmark = pytest.mark.usefixtures("fake_algorithms")


def test_numbers_of_evaluators_stand_beside_the_evaluation(tmp_path: Path) -> None:
    world = World(reward=by_action)
    scripted = [Scripted(7, 8, name="score"), Scripted(None, None, name="nothing")]
    story = offline(
        tmp_path, world=world, total_timesteps=4, eval_interval=2, eval_episodes=1, evaluators=scripted
    )
    rows = story.rows("eval")
    assert [(row["score"], row["nothing"]) for row in rows] == [(7, None), (8, None)]
    assert rows[0]["eval_return_mean"] == 1.5 + 12 / 1024
    assert story.result.metrics["score"] == 8


def test_evaluators_need_no_environment(tmp_path: Path) -> None:
    metrics = offline(tmp_path, evaluators=[Scripted(7, name="score")]).result.metrics
    assert (metrics["score"], metrics["eval_return_mean"], metrics["eval_episodes"]) == (7, None, 0)


class LogAt(Callback):
    """Logs a number of its own after some steps."""

    def __init__(self, **numbers: float) -> None:
        self.numbers = {int(step[1:]): value for step, value in numbers.items()}

    def on_step_end(self, run: Run) -> None:
        if run.global_step in self.numbers:
            run.log("mine", self.numbers[run.global_step])


def test_a_logged_number_goes_with_the_next_row_and_no_other(tmp_path: Path) -> None:
    story = offline(tmp_path, total_timesteps=8, log_interval=2, callbacks=[LogAt(s1=1.0, s5=4.0, s6=5.0)])
    rows = [(row["step"], row["made"], row.get("mine")) for row in story.rows("train")]
    assert rows == [(2, 2.0, 1.0), (4, 4.0, None), (6, 6.0, 4.0), (8, 8.0, 5.0)]


@pytest.mark.parametrize(
    ("interval", "steps"), [(3, [3, 6, 7]), (7, [7]), (100, [7]), (1, [1, 2, 3, 4, 5, 6, 7])]
)
def test_training_rows_come_at_the_log_interval_and_once_at_the_end(
    interval: int, steps: list[int], tmp_path: Path
) -> None:
    story = offline(tmp_path, total_timesteps=7, log_interval=interval)
    assert [row["step"] for row in story.rows("train")] == steps
    assert [row["made"] for row in story.rows("train")] == steps


class Tally(Callback):
    """Adds its own weight with every step."""

    def __init__(self, weight: int) -> None:
        self.weight, self.total = weight, 0

    def on_step_end(self, run: Run) -> None:
        self.total += self.weight

    def state_dict(self) -> dict[str, Any]:
        return {"total": self.total}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.total = state["total"]


def test_two_callbacks_of_one_class_keep_their_own_state(tmp_path: Path) -> None:
    first = offline(tmp_path, total_timesteps=3, callbacks=[Tally(1), Tally(100)])
    saved = load_checkpoint(first.result.run_dir)["callbacks"]
    assert (saved["Tally.0"], saved["Tally.1"]) == ({"total": 3}, {"total": 300})
    again = [Tally(1), Tally(100)]
    go_on(first, 5, callbacks=again)
    assert [each.total for each in again] == [5, 500]


class Hooks(Callback):
    """Writes down every hook."""

    def __init__(self) -> None:
        self.heard: list[str] = []

    def on_train_start(self, run: Run) -> None:
        self.heard.append(f"start {run.global_step}")

    def on_step_start(self, run: Run) -> None:
        self.heard.append(f"step {run.global_step}")

    def on_update_end(self, run: Run, result: Any) -> None:
        self.heard.append(f"update {run.gradient_steps} {result.metrics['made']:g}")

    def on_step_end(self, run: Run) -> None:
        self.heard.append(f"stepped {run.global_step}")

    def on_eval_end(self, run: Run, metrics: dict[str, Any], scheduled: bool) -> None:
        self.heard.append(
            f"evaluated {metrics['eval_return_mean']} {'scheduled' if scheduled else 'closing'}"
        )

    def on_train_end(self, run: Run) -> None:
        self.heard.append(f"end {run.global_step}")

    def close(self, run: Run) -> None:
        self.heard.append("closed")


def test_hooks_are_heard_in_order(tmp_path: Path) -> None:
    hooks = Hooks()
    settings: dict[str, Any] = {"total_timesteps": 3, "eval_interval": 2, "gradient_updates_per_step": 2}
    story = online(
        tmp_path, evaluators=[Scripted(5, 6)], callbacks=[hooks], learning_starts=1, num_envs=1, **settings
    )
    assert hooks.heard == [
        *("start 0", "step 0", "stepped 1"),
        *("step 1", "update 1 1", "update 2 2", "evaluated 5 scheduled", "stepped 2"),
        *("step 2", "update 3 3", "update 4 4", "stepped 3"),
        *("evaluated 6 closing", "end 3", "closed"),
    ]
    assert counters(story) == (3, 4, 3)


def counters(story: Story) -> tuple[int, int, int]:
    saved = load_checkpoint(story.result.run_dir)["counters"]
    return saved["global_step"], saved["gradient_steps"], saved["env_steps"]


class Failing(Callback):
    """Breaks in the third step."""

    closed = False

    def on_step_end(self, run: Run) -> None:
        if run.global_step == 3:
            raise RuntimeError("broken")

    def close(self, run: Run) -> None:
        self.closed = True


def test_callbacks_are_closed_also_when_the_run_fails(tmp_path: Path) -> None:
    failing = Failing()
    with pytest.raises(RuntimeError, match="broken"):
        offline(tmp_path, callbacks=[failing])
    assert failing.closed


# ---- learning rates along a run: warm-up, schedules, groups, separate rates, and what a resume keeps


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


# ---- what ends a run: early stopping, budgets of updates and epochs, and a stop inside a round of updates


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
