"""Evaluation: episodes that do not depend on each other, and what a run reports of them."""

from __future__ import annotations

import itertools
import os
import signal
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fake_algorithm import Scripted, Story, go_on, offline, online
from fake_world import World, by_action
from rl_training.config.limits import Limit
from rl_training.core.checkpoints import load_checkpoint, read_header
from rl_training.core.errors import EnvironmentProblem, UserError
from rl_training.core.spaces import Spaces
from rl_training.policies.acting import ActingPolicy
from rl_training.policies.inputs import RuntimeInput
from rl_training.runs.evaluate import evaluate_checkpoint
from rl_training.runtime import evaluate as evaluation
from rl_training.runtime.callbacks import Callback, Interval, Run
from rl_training.runtime.collect import Collector
from rl_training.runtime.envs import episode_seed, make_env, spaces_of

COUNT, WALK = "toy_envs:Count-v0", "toy_envs:Walk-v0"


class Linear(ActingPolicy):
    """Every row by itself, and exactly so: no matrix product."""

    def __init__(self, *weights: float) -> None:
        self.weights = weights

    def act(self, obs: np.ndarray, deterministic: bool = True) -> np.ndarray:
        columns = [weight * obs[:, 0] for weight in self.weights]
        return np.clip(np.stack(columns, axis=-1), -0.5, 0.5).astype(np.float32)


class Network(ActingPolicy):
    """A network whose rounding depends on the number of rows."""

    def __init__(self, obs_dim: int, action_dim: int) -> None:
        generator = torch.Generator().manual_seed(0)
        sizes = (obs_dim, 64, 64, action_dim)
        self.layers = [torch.randn(a, b, generator=generator) / a**0.5 for a, b in itertools.pairwise(sizes)]

    def act(self, obs: np.ndarray, deterministic: bool = True) -> np.ndarray:
        hidden = torch.from_numpy(obs.copy())
        for layer in self.layers:
            hidden = torch.tanh(hidden @ layer)
        return (2 * hidden).numpy()


def evaluate_policy(policy: Any, env: Any, env_kwargs: Any, *args: Any, **options: Any) -> Any:
    """These policies act in any environment."""
    policy.spaces = spaces_of(env, env_kwargs)
    return evaluation.evaluate_policy(policy, env, env_kwargs, *args, **options)


def one_by_one(policy: Any, env_id: str, episodes: int, seed: int) -> tuple[list[float], list[int]]:
    """The plain loop that evaluation has to agree with."""
    returns, lengths = [], []
    env = make_env(env_id)
    for episode in range(episodes):
        obs, _ = env.reset(seed=episode_seed(seed, "eval", episode))
        total, length, ended = 0.0, 0, False
        while not ended:
            action = policy.act(np.asarray(obs, dtype=np.float32)[None])[0]
            obs, reward, terminated, truncated, _ = env.step(action)
            total, length, ended = total + float(reward), length + 1, terminated or truncated
        returns.append(total)
        lengths.append(length)
    return returns, lengths


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_results_go_by_episode_whatever_the_width(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "POLICY_ROWS", rows)
    policy = Linear(-0.7, 0.3)
    result = evaluate_policy(policy, WALK, {}, 13, seed=2)
    returns, lengths = one_by_one(policy, WALK, 13, seed=2)
    assert result.returns.tolist() == returns
    assert result.lengths.tolist() == lengths
    assert len(set(lengths)) > 3, "episodes of unequal length end in another order than they started"
    assert result.return_mean == pytest.approx(np.mean(returns))
    assert result.return_std == pytest.approx(np.std(returns))


def test_a_networks_result_does_not_depend_on_how_many_episodes_are_played() -> None:
    policy = Network(3, 1)
    full = evaluate_policy(policy, "Pendulum-v1", {}, 10, seed=0)
    for count in (1, 3, 8):
        part = evaluate_policy(policy, "Pendulum-v1", {}, count, seed=0)
        assert part.returns.tolist() == full.returns[:count].tolist()
    assert full.lengths.tolist() == [200] * 10
    assert len(np.unique(full.returns)) == 10
    other = evaluate_policy(policy, "Pendulum-v1", {}, 3, seed=1)
    assert set(other.returns.tolist()).isdisjoint(full.returns.tolist())


def test_it_touches_neither_global_randomness_nor_a_collector() -> None:
    def collected(evaluate: bool) -> np.ndarray:
        with Collector(WALK, {}, 2, 0) as collector:
            rows = []
            for _ in range(20):
                rows.append(collector.step().next_obs)
                if evaluate:
                    evaluate_policy(Linear(0.1, 0.1), WALK, {}, 2, seed=0)
            return np.stack(rows)

    np.random.seed(3)  # the global state that must not move
    torch.manual_seed(3)
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()
    assert np.array_equal(collected(evaluate=True), collected(evaluate=False))
    assert np.array_equal(before, np.random.get_state()[1])
    assert torch.equal(torch_before, torch.get_rng_state())


def test_returns_are_raw_and_each_episode_is_reported_once() -> None:
    heard: list[tuple[int, float, int]] = []
    result = evaluate_policy(
        Linear(0.0),
        COUNT,
        {"truncate_at": 4},
        11,
        seed=0,
        on_episode=lambda number, ret, length: heard.append((number, ret, length)),
    )
    assert result.returns.tolist() == [10.0] * 11
    assert result.lengths.tolist() == [4] * 11
    assert sorted(heard) == [(number, 10.0, 4) for number in range(11)]
    assert isinstance(heard[0][0], int) and isinstance(heard[0][2], int)


def test_deterministic_is_passed_on() -> None:
    asked: list[bool] = []

    class Asking(Linear):
        def act(self, obs: np.ndarray, deterministic: bool = True) -> np.ndarray:
            asked.append(deterministic)
            return super().act(obs)

    evaluate_policy(Asking(0.0), COUNT, None, 1, seed=0)
    evaluate_policy(Asking(0.0), COUNT, None, 1, seed=0, deterministic=False)
    assert asked == [True] * 3 + [False] * 3


def test_an_episode_without_end_is_cut_with_a_message() -> None:
    with pytest.warns(
        UserWarning, match=r"9 evaluation episodes of 'toy_envs:Count-v0' were cut after 25 steps"
    ) as caught:
        result = evaluate_policy(Linear(0.0), COUNT, {"truncate_at": None}, 9, seed=0, max_episode_steps=25)
    assert len(caught) == 1
    assert result.lengths.tolist() == [25] * 9
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        evaluate_policy(Linear(0.0), COUNT, {"truncate_at": 25}, 2, seed=0, max_episode_steps=25)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (
            "raise",
            r"evaluation episode 0 \(step 2\) of 'toy_envs:Count-v0' raised RuntimeError: broken wheel",
        ),
        ("obs", r"\(step 2\) .* entry 1 is nan"),
        ("reward", r"\(step 2\) .* reward inf"),
        ("reset", r"evaluation episode 0 \(reset\) .* raised RuntimeError: cannot start"),
    ],
)
def test_a_broken_environment_is_named(fault: str, words: str) -> None:
    with pytest.raises(EnvironmentProblem, match=words):
        evaluate_policy(Linear(0.0), COUNT, {"fault": fault, "fault_at": 2}, 3, seed=0)


def test_a_policy_that_returns_no_number_is_named() -> None:
    with pytest.raises(EnvironmentProblem, match=r"was given the action \[nan\], which is not finite"):
        evaluate_policy(Linear(np.nan), "Pendulum-v1", {}, 1, seed=0)


def test_unsupported_environments_and_no_episodes_are_refused() -> None:
    with pytest.raises(EnvironmentProblem, match=r"FrozenLake-v1.*the observation space Discrete\(16\)"):
        evaluate_policy(Linear(0.0), "FrozenLake-v1", {}, 1, seed=0)
    with pytest.raises(UserError, match="num_episodes must be >= 1, got 0"):
        evaluate_policy(Linear(0.0), "Pendulum-v1", {}, 0, seed=0)


# ---- costs


class Counted(ActingPolicy):
    """Writes down what it is given, and acts with zeros."""

    def __init__(self) -> None:
        self.spaces = Spaces(3, (-2.0,), (2.0,))
        self.inputs = (
            RuntimeInput("spent", -1e9, 1e9, 0.0, counted=True),
            RuntimeInput("steps", 0.0, 1e9, 0.0, counted=True),
        )
        self.given: list[dict[str, Any]] = []

    def act(self, obs: Any, deterministic: bool = True, **inputs: Any) -> Any:
        self.given.append({name: np.asarray(value).copy() for name, value in inputs.items()})
        return np.zeros((len(obs), 1), dtype=np.float32)

    def act_with_novelty(self, obs: Any, **inputs: Any) -> Any:
        raise NotImplementedError


def test_costs_are_told_by_the_environment_or_declared() -> None:
    """Steps of the world cost 1, 2 and 3, and the time that is seen before them is 0, 1 and 2."""
    policy = Counted()
    told = evaluate_policy(policy, World().make, None, 3, seed=0)
    assert told.costs["cost"].tolist() == [6.0, 6.0, 6.0]
    assert told.cost_metrics((Limit("cost", 2.0), Limit("other", 1.0))) == {
        "eval_cost_cost": 6.0,
        "eval_cost_cost_per_step": 2.0,
        "eval_limit_cost_kept": 1.0,
    }
    assert told.cost_metrics((Limit("cost", 5.9, "episode"),))["eval_limit_cost_kept"] == 0.0
    declared = {"late": "obs_2 > 0", "dear": "cost > 2"}
    found = evaluate_policy(policy, World().make, None, 2, seed=0, costs=declared)
    assert {name: totals.tolist() for name, totals in found.costs.items()} == {"late": [2, 2], "dear": [1, 1]}
    unknown = evaluate_policy(policy, World().make, None, 1, seed=0, costs={"hot": "T_tank > 80"})
    assert unknown.costs == {} and unknown.cost_metrics((Limit("hot", 1.0),)) == {}


def test_a_policy_that_counts_hears_what_the_environment_tells() -> None:
    policy = Counted()
    evaluate_policy(policy, World().make, None, 1, seed=0)
    assert [float(each["spent"][0]) for each in policy.given] == [0.0, 1.0, 3.0]
    assert [float(each["steps"][0]) for each in policy.given] == [0.0, 1.0, 2.0]


# ---- evaluation, checkpoints, logs and callbacks along a run, against numbers written down beforehand


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
