"""Evaluation: the same result whatever else happens, in the environment's own rewards."""

import itertools
import warnings
from typing import Any

import numpy as np
import pytest
import torch

from fake_world import World
from rl_training.config.limits import Limit
from rl_training.core.errors import EnvironmentProblem, UserError
from rl_training.core.spaces import Spaces
from rl_training.policies.acting import ActingPolicy
from rl_training.policies.inputs import RuntimeInput
from rl_training.runtime import evaluate as evaluation
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
