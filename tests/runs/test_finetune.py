"""Offline, then online, in one run: phases, what they leave unchanged, and exact resume on every border."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

from helpers import assert_same_tree, slow_but_two, tiny_config, train
from rl_training.algorithms.recipe import get_recipe
from rl_training.config.run import TrainConfig
from rl_training.core.checkpoints import load_checkpoint
from rl_training.core.errors import ConfigError, DataError
from rl_training.core.registry import algorithm_names
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.policies.policy import policy_of_state
from rl_training.runs.resume import finetune_checkpoint, resume_training
from rl_training.runs.tracking import online_numbers, read_metrics
from rl_training.runtime.callbacks import Callback, Run
from rl_training.runtime.offline_data import build_offline_dataset

OFFLINE = [name for name in algorithm_names() if not get_recipe(name).online]
NEVER_ONLINE = ("caps", "lion")
TRAINING_STATE = ("counters", "learner", "streams", "collector", "exploration", "replay", "callbacks")


def phased(algo: str, output_dir: Path, **changes: Any) -> TrainConfig:
    """20 offline updates, then 6 steps of warm-up and 24 of learning, in episodes of 9 steps."""
    kwargs = {"warmup_steps_online": 6, "buffer_capacity": 40, **changes.pop("algo_kwargs", {})}
    given = {"total_timesteps": 20, "online_timesteps": 30, "env_kwargs": {"max_episode_steps": 9}, **changes}
    return tiny_config(algo, output_dir, algo_kwargs=kwargs, **given)


def state_of(path: Path | None) -> dict[str, Any]:
    assert path is not None
    return load_checkpoint(path)


def assert_same_training_state(left: Path | None, right: Path | None) -> None:
    states = [state_of(left), state_of(right)]
    for key in TRAINING_STATE:
        if key in states[0] or key in states[1]:
            assert_same_tree(states[0][key], states[1][key], key)


@pytest.mark.parametrize("algo", slow_but_two(OFFLINE))
def test_without_online_steps_a_run_is_a_plain_loop_over_the_data(algo: str, tmp_path: Path) -> None:
    """The same numbers, bit for bit, as the few lines that an offline run has always been."""
    config = tiny_config(algo, tmp_path, online_timesteps=0)
    recipe, data = get_recipe(algo), build_offline_dataset(config)
    learner = recipe.build_learner(config.run_config(), data.spaces, seed=config.seed)
    batches = RandomStream([torch_generator(config.seed, "batch")], "unit64")
    if learner.looks_at_data:
        learner.look_at_data(data.dataset.gather(torch.arange(len(data.dataset))))
    for step in range(40):
        rows = (batches.next(16) * len(data.dataset)).long()
        learner.update(data.dataset.gather(rows), global_step=step)
    trained = state_of(train(config).checkpoint_path)
    assert_same_tree(trained["learner"]["tensors"], learner.state_dict()["tensors"])
    assert trained["counters"]["env_steps"] == 0 and "replay" not in trained


@pytest.mark.parametrize("algo", slow_but_two(name for name in OFFLINE if name not in NEVER_ONLINE))
def test_every_offline_algorithm_goes_online(algo: str, tmp_path: Path) -> None:
    result = train(phased(algo, tmp_path))
    counters = state_of(result.checkpoint_path)["counters"]
    assert (counters["global_step"], counters["env_steps"], counters["gradient_steps"]) == (50, 30, 20 + 24)
    assert (counters["phase"], counters["phase_step"]) == (2, 24)


class StopAt(Callback):
    def __init__(self, step: int) -> None:
        self.step = step

    def on_step_end(self, run: Run) -> None:
        if run.global_step == self.step:
            run.request_stop("enough for now")


STOPS = {"offline": 13, "border to warm-up": 20, "warm-up": 23, "border to online": 26, "online": 41}


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["cal_ql", "iql"])
def test_a_run_is_resumed_exactly_in_every_phase(algo: str, tmp_path: Path) -> None:
    changes = {"algo_kwargs": {"eval_interval": 5, "learning_rate_schedule": "cosine"}}
    whole = train(phased(algo, tmp_path / "whole", **changes))
    for step in STOPS.values():
        half = train(phased(algo, tmp_path / "half", **changes), callbacks=[StopAt(step)])
        assert half.metrics["global_step"] == step
        resumed = resume_training(half.run_dir, quiet=True)
        assert_same_training_state(whole.checkpoint_path, resumed.checkpoint_path)


@pytest.mark.parametrize("num_envs", [1, 2])
def test_a_kill_inside_a_round_of_updates_is_resumed_inside_it(num_envs: int, tmp_path: Path) -> None:
    changes: dict[str, Any] = {
        "num_envs": num_envs,
        "algo_kwargs": {"train_frequency": 4, "gradient_updates_per_step": 2, "batch_size_online": 12},
    }
    whole = train(phased("td3_bc", tmp_path / "whole", **changes))

    class StopAfterUpdates(Callback):
        def on_update_end(self, run: Run, result: Any) -> None:
            if run.gradient_steps == 31:
                run.request_stop("in the middle")

    half = train(phased("td3_bc", tmp_path / "half", **changes), callbacks=[StopAfterUpdates()])
    assert half.metrics["gradient_steps"] == 31
    resumed = resume_training(half.run_dir, quiet=True)
    assert_same_training_state(whole.checkpoint_path, resumed.checkpoint_path)


@pytest.mark.slow
def test_seeds_of_a_stack_go_online_as_each_alone(tmp_path: Path) -> None:
    """Episodes of the two seeds end at different steps, which decides what Cal-QL may draw."""
    changes: dict[str, Any] = {"env_id": "toy_envs:Walk-v0", "env_kwargs": {}}
    together = train(phased("cal_ql", tmp_path / "stack", seeds=[3, 7], **changes))
    alone = train(phased("cal_ql", tmp_path / "alone", seed=7, **changes))
    states = [state_of(together.members[1].checkpoint_path), state_of(alone.checkpoint_path)]
    assert states[0]["counters"] == states[1]["counters"]
    assert states[0]["replay"]["returns_to_go"].shape == states[1]["replay"]["returns_to_go"].shape
    for name, values in states[0]["learner"]["tensors"].items():
        torch.testing.assert_close(values, states[1]["learner"]["tensors"][name], rtol=1e-3, atol=2e-4)
    resumed = resume_training(
        together.members[1].run_dir, online_timesteps=34, env="toy_envs:Walk-v0", quiet=True
    )
    assert resumed.metrics["global_step"] == 54


def test_fine_tuning_a_checkpoint_is_the_second_half_of_one_run(tmp_path: Path) -> None:
    one = train(phased("cal_ql", tmp_path / "one"))
    offline = train(phased("cal_ql", tmp_path / "two", online_timesteps=0))
    other = finetune_checkpoint(offline.run_dir, timesteps=30, quiet=True)
    assert other.run_dir != offline.run_dir and other.run_dir.name.endswith("-finetune")
    left, right = state_of(one.checkpoint_path), state_of(other.checkpoint_path)
    for key in ("counters", "learner", "streams", "collector", "exploration", "replay"):
        assert_same_tree(left[key], right[key], key)
    parent = json.loads((other.run_dir / "summary.json").read_text())["parent"]
    assert parent == {"run": str(offline.run_dir), "checkpoint": "step_20.safetensors", "step": 20}
    again = resume_training(other.run_dir, online_timesteps=33, quiet=True)
    assert again.metrics["env_steps"] == 33
    assert json.loads((again.run_dir / "summary.json").read_text())["parent"] == parent


class Recorded(gym.Wrapper[Any, Any, Any, Any]):
    """Writes down what the environment really gave."""

    def __init__(self, env: gym.Env[Any, Any], log: list[tuple[Any, Any, float]]) -> None:
        super().__init__(env)
        self.log = log

    def reset(self, **given: Any) -> Any:
        self.last, info = super().reset(**given)
        return self.last, info

    def step(self, action: Any) -> Any:
        obs, reward, *rest = super().step(action)
        self.log.append((self.last, action, float(reward)))
        self.last = obs
        return obs, reward, *rest


def test_what_is_collected_is_in_the_units_that_were_fitted_on_the_data(tmp_path: Path) -> None:
    log: list[tuple[Any, Any, float]] = []

    def make() -> gym.Env[Any, Any]:
        return Recorded(gym.make("Pendulum-v1", max_episode_steps=9), log)

    given = {"normalize_reward": True, "reward_shift": -0.25, "normalize_observations": True}
    config = phased("iql", tmp_path, eval_episodes=0, env_kwargs={}, algo_kwargs=given)
    data = build_offline_dataset(tiny_config("iql", tmp_path, env_kwargs={"max_episode_steps": 9})).dataset
    config = config.replace(env_kwargs={})
    dataset = TransitionDataset(
        data.obs, 2.0 * data.actions, data.rewards, data.next_obs, data.dones, truncations=data.truncations
    )
    result = train(config, env=make, dataset=dataset)
    returns = dataset.episode_returns()
    scale = 1000.0 / (returns.max() - returns.min())
    replay = state_of(result.checkpoint_path)["replay"]
    seen = log[-30:]
    np.testing.assert_allclose(replay["rewards"], [scale * reward - 0.25 for _, _, reward in seen], rtol=1e-5)
    mean, std = data.obs.mean(0), data.obs.std(0, correction=0)
    raw = torch.as_tensor(np.stack([obs for obs, _, _ in seen]))
    torch.testing.assert_close(replay["obs"], (raw - mean) / (std + 1e-3), rtol=1e-4, atol=1e-4)
    played = torch.as_tensor(np.stack([action for _, action, _ in seen]))
    torch.testing.assert_close(replay["actions"], played / 2.0)


def test_the_policy_is_evaluated_before_the_first_online_step_and_never_random_again(tmp_path: Path) -> None:
    result = train(phased("td3_bc", tmp_path, log_interval=1, algo_kwargs={"exploration_noise": 0.0}))
    rows = read_metrics(result.run_dir)
    evaluated = [(row["step"], row["phase"]) for row in rows if row["kind"] == "eval"]
    assert evaluated == [(20, 1.0), (50, 2.0)]
    phases = {row["step"]: row["phase"] for row in rows if row["kind"] == "train"}
    assert [phases[step] for step in (1, 20, 21, 26, 27, 50)] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0]
    state = state_of(result.checkpoint_path)
    assert state["collector"]["random"]["count"] == 0
    policy = policy_of_state(state_of(train(phased("td3_bc", tmp_path, online_timesteps=0)).checkpoint_path))
    raw = (
        state["replay"]["obs"][:6] * (policy.observation_steps[0].std + 1e-3)
        + policy.observation_steps[0].mean
    )
    np.testing.assert_allclose(state["replay"]["actions"][:6], policy.act_unit(raw.numpy()), atol=1e-4)


@pytest.mark.parametrize("algo", ["td3_bc", "rebrac"])
def test_a_deterministic_policy_explores_with_noise(algo: str, tmp_path: Path) -> None:
    quiet, loud = (
        state_of(
            train(
                phased(algo, tmp_path, algo_kwargs={"exploration_noise": noise}, eval_episodes=0)
            ).checkpoint_path
        )["replay"]["actions"][0]
        for noise in (0.0, 0.5)
    )
    drawn = RandomStream([torch_generator(7, "explore")], "normal").next(1)
    torch.testing.assert_close(loud, (quiet + 0.5 * drawn).clamp(-1.0, 1.0))


def test_rates_follow_their_schedule_offline_and_are_the_base_rates_online(tmp_path: Path) -> None:
    given = {"learning_rate_schedule": "cosine", "schedule_groups": "actor", "learning_rate": 1e-3}
    rates = {
        steps: state_of(
            train(phased("iql", tmp_path, online_timesteps=steps, algo_kwargs=given)).checkpoint_path
        )["learner"]["learning_rates"]
        for steps in (0, 30)
    }
    assert float(rates[0]["actor"]) == pytest.approx(1e-3 * 0.5 * (1 + math.cos(math.pi * 19 / 20)))
    assert float(rates[30]["actor"]) == float(rates[30]["critic"]) == pytest.approx(1e-3)


def test_data_with_an_empty_share_leaves_redq_as_it_is(tmp_path: Path) -> None:
    alone = train(tiny_config("redq", tmp_path / "alone"))
    data = {"dataset_kind": "random", "dataset_size": 100, "offline_share": 0.0}
    beside = train(tiny_config("redq", tmp_path / "beside", algo_kwargs=data))
    assert_same_training_state(alone.checkpoint_path, beside.checkpoint_path)
    half = train(tiny_config("redq", tmp_path / "half", algo_kwargs={**data, "offline_share": None}))
    weights = [state_of(run.checkpoint_path)["learner"]["tensors"] for run in (alone, half)]
    assert any(not torch.equal(values, weights[1][name]) for name, values in weights[0].items())
    resumed = resume_training(half.run_dir, total_timesteps=45, quiet=True)
    assert resumed.metrics["global_step"] == 45


def npz_config(tmp_path: Path, rows: int = 60, **changes: Any) -> TrainConfig:
    rng = np.random.default_rng(rows)
    states = rng.normal(size=(rows + 1, 3)).astype(np.float32)
    np.savez(
        tmp_path / "log.npz",
        observations=states[:-1],
        actions=rng.uniform(-2, 2, size=(rows, 1)).astype(np.float32),
        rewards=rng.normal(size=rows).astype(np.float32),
        next_observations=states[1:],
        terminals=np.arange(rows) % 10 == 9,
    )
    kwargs = {"dataset_kind": "npz", "dataset_path": str(tmp_path / "log.npz"), "dataset_size": None}
    return phased("iql", tmp_path, algo_kwargs={**kwargs, **changes.pop("algo_kwargs", {})}, **changes)


def test_a_run_goes_on_only_on_the_data_that_it_began_with(tmp_path: Path) -> None:
    half = train(npz_config(tmp_path), callbacks=[StopAt(41)])
    npz_config(tmp_path, rows=70)
    with pytest.raises(DataError, match=r"log.npz has changed .*60 rows then, 70 now.*--allow-changed-data"):
        resume_training(half.run_dir, quiet=True)
    resumed = resume_training(half.run_dir, allow_changed_data=True, quiet=True)
    assert resumed.metrics["global_step"] == 50


def test_data_that_is_gone_is_missed_unless_it_was_dropped(tmp_path: Path) -> None:
    mixed = train(npz_config(tmp_path), callbacks=[StopAt(41)])
    kept = train(npz_config(tmp_path, algo_kwargs={"offline_data": "drop"}), callbacks=[StopAt(41)])
    whole = train(npz_config(tmp_path, algo_kwargs={"offline_data": "drop"}))
    (tmp_path / "log.npz").unlink()
    with pytest.raises(DataError, match=r"log\.npz"):
        resume_training(mixed.run_dir, quiet=True)
    resumed = resume_training(kept.run_dir, quiet=True)
    assert_same_training_state(whole.checkpoint_path, resumed.checkpoint_path)


@pytest.mark.parametrize("use", ["append", "drop"])
def test_data_can_be_appended_to_or_dropped(use: str, tmp_path: Path) -> None:
    result = train(phased("awac", tmp_path, algo_kwargs={"offline_data": use}))
    assert result.metrics["gradient_steps"] == 44


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "online steps without an environment": ({"env_id": None}, "env_id is required: online_timesteps 30 "),
    "warm-up without an end": (
        {"algo_kwargs": {"warmup_steps_online": 30}},
        r"algo_kwargs\.warmup_steps_online must be < online_timesteps \(30\), got 30",
    ),
    "a share above one": (
        {"algo_kwargs": {"offline_share": 1.5}},
        r"algo_kwargs\.offline_share must be between 0 and 1, got 1\.5",
    ),
    "a line without steps": (
        {"algo_kwargs": {"offline_share": [0.5, 0.0, 0]}},
        r"offline_share must be \[a, b, n\] with n >= 1 steps, got \[0\.5, 0\.0, 0\]",
    ),
    "a share of dropped data": (
        {"algo_kwargs": {"offline_share": 0.5, "offline_data": "drop"}},
        "offline_share must be null with offline_data 'drop'",
    ),
    "an online algorithm": (
        {"algo": "sac", "algo_kwargs": {}},
        "online_timesteps must be 0 for sac, all of whose total_timesteps are online, got 30",
    ),
}


@pytest.mark.parametrize("case", BAD_CONFIGS)
def test_what_does_not_fit_is_said_in_one_line(case: str, tmp_path: Path) -> None:
    changes, message = BAD_CONFIGS[case]
    values = {
        "algo": "iql",
        "env_id": "Pendulum-v1",
        "total_timesteps": 20,
        "online_timesteps": 30,
        **changes,
    }
    with pytest.raises(ConfigError, match=message) as problem:
        train(TrainConfig(output_dir=str(tmp_path), **values))
    assert len(str(problem.value).splitlines()) == 1


def test_a_share_without_data_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"algo_kwargs\.offline_share must be null without data, got 0\.5"):
        train(tiny_config("sac", tmp_path, algo_kwargs={"offline_share": 0.5}))


def test_an_environment_that_does_not_fit_is_named(tmp_path: Path) -> None:
    offline = train(phased("iql", tmp_path, online_timesteps=0))
    with pytest.raises(ConfigError, match=r"obs_dim of 'toy_envs:Walk-v0' is 2, the policy has 3"):
        finetune_checkpoint(offline.run_dir, timesteps=10, env="toy_envs:Walk-v0", quiet=True)
    with pytest.raises(ConfigError, match=r"action_low of .* is \[-1\.0\], the policy has \[-2\.0\]"):
        finetune_checkpoint(
            offline.run_dir,
            timesteps=10,
            wrappers=[lambda env: gym.wrappers.RescaleAction(env, np.float32(-1.0), np.float32(1.0))],
            quiet=True,
        )
    online = train(tiny_config("sac", tmp_path))
    with pytest.raises(ConfigError, match="sac learns online already: go on with rl-training resume"):
        finetune_checkpoint(online.run_dir, timesteps=10, quiet=True)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"changes": {"env_id": "Other-v0"}}, "env_id must be given with --env-id"),
        ({"changes": {"online_timesteps": 9}}, "online_timesteps must be given with --timesteps"),
        ({"changes": {"total_timesteps": 9}}, "total_timesteps must be given with --timesteps"),
        ({"changes": {"wrappers": ["a:b"]}}, "wrappers must be given with --wrapper"),
        ({"changes": {"output_dir": "a"}, "output_dir": "b"}, "output_dir is given twice, as 'b' and as 'a'"),
        ({"changes": {"algo_kwargs": {"offline_data": "drop"}}, "data": "x.npz"}, "data must be left out"),
    ],
)
def test_what_fine_tuning_would_ignore_is_refused(
    options: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    offline = train(tiny_config("bc", tmp_path, total_timesteps=2))
    with pytest.raises(ConfigError, match=complaint):
        finetune_checkpoint(offline.run_dir, timesteps=10, quiet=True, **options)


def test_wrappers_without_an_environment_are_refused(tmp_path: Path) -> None:
    data = TransitionDataset(
        *(torch.zeros(8, 2), torch.zeros(8, 1), torch.zeros(8)), torch.zeros(8, 2), torch.zeros(8)
    )
    bounds = {"action_low": [-1.0], "action_high": [1.0]}
    own = train(tiny_config("bc", tmp_path, env_id=None, algo_kwargs=bounds), dataset=data)
    with pytest.raises(
        ConfigError, match="wrappers need env_id: this policy was trained without an environment"
    ):
        resume_training(own.run_dir, dataset=data, wrappers=[lambda env: env], quiet=True)


def test_the_offline_phase_cannot_grow_when_it_is_over(tmp_path: Path) -> None:
    result = train(phased("iql", tmp_path))
    with pytest.raises(ConfigError, match=r"total_timesteps must stay 20, .* give online_timesteps"):
        resume_training(result.run_dir, total_timesteps=40, quiet=True)


def test_numbers_of_the_online_phase() -> None:
    def row(step: int, value: float, score: float) -> dict[str, Any]:
        return {"step": step, "kind": "eval", "eval_return_mean": value, "eval_normalized_score": score}

    rows = [row(50, 10.0, 1.0), row(100, 40.0, 4.0), row(5_000, 30.0, 3.0), row(10_100, 36.0, 60.0)]
    rows += [row(10_101, 5.0, 20.0), row(20_000, 69.0, 17.0)]
    rows += [
        {"step": step, "kind": "collect", "rollout_return_mean": value, "rollout_episodes": count}
        for step, value, count in ((100, 99.0, 9.0), (200, 10.0, 3.0), (300, 30.0, 1.0))
    ]
    # step 10,100 is the last of the first 10,000
    assert online_numbers([*rows[:3], row(10_100, 20.0, 1.0)], 100)["online_drop"] == 20.0
    assert online_numbers(rows, 100) == {
        "online_return_before": 40.0,
        "online_return_lowest": 30.0,
        "online_drop": 10.0,
        "online_return_last": 69.0,
        "online_return_mean": 35.0,
        "online_regret": 0.75,
        "online_episodes": 4.0,
        "online_rollout_mean": 15.0,
    }
