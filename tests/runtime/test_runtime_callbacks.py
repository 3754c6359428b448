"""What a user hangs on a run: evaluators, numbers of one's own, callbacks and their state."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fake_algorithm import Scripted, Story, go_on, offline, online
from fake_world import World, by_action
from rl_training.core.checkpoints import load_checkpoint
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
