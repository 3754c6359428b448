"""CartPole-v1, whose action is a choice: steps to 475 of 500, and learning from a log of mixed skill.

    python benchmarks/scores/cartpole.py online --algos dqn sac --seeds 0 1 2
    python benchmarks/scores/cartpole.py log --algos discrete_cql iql --seeds 0 1 2
    PEERS/bin/python benchmarks/scores/cartpole.py online --algos sb3 --seeds 0 1 2
    PEERS/bin/python benchmarks/scores/cartpole.py log --algos d3rlpy --seeds 0 1 2

PEERS is an environment of its own with stable-baselines3 and d3rlpy. `online`: our packaged configs beside
SB3's DQN with the settings of RL Zoo, all evaluated every 1,000 steps. `log`: 300 episodes of a rule that
balances and is shaken by 40, 70 or 100 % random pushes, the same rows for everybody; ours beside d3rlpy's
DiscreteCQL, with equal networks, batches, step sizes and updates.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np

ENV, LONGEST = "CartPole-v1", 500
ACT = Callable[[Any], int]
ZOO: dict[str, Any] = {
    "learning_rate": 2.3e-3,
    "batch_size": 64,
    "buffer_size": 100_000,
    "learning_starts": 1000,
    "target_update_interval": 10,
    "train_freq": 256,
    "gradient_steps": 128,
    "exploration_fraction": 0.16,
    "exploration_final_eps": 0.04,
    "policy_kwargs": {"net_arch": [256, 256]},
}
WIDTHS, BATCH, RATE = [64, 64], 64, 1e-3


def returned(act: ACT, episodes: int, seed: int = 10_000) -> float:
    """Mean steps of new episodes."""
    env, total = gymnasium.make(ENV), 0
    for episode in range(episodes):
        obs, _ = env.reset(seed=seed + episode)
        over = False
        while not over:
            obs, _, terminated, truncated, _ = env.step(act(obs))
            over, total = terminated or truncated, total + 1
    return total / episodes


# ---- online


def sb3_curve(seed: int, options: argparse.Namespace) -> list[float]:
    import torch
    from stable_baselines3 import DQN
    from stable_baselines3.common.callbacks import BaseCallback

    torch.set_num_threads(1)
    curve: list[float] = []

    class Evaluate(BaseCallback):
        def _on_step(self) -> bool:
            if self.num_timesteps % options.every == 0:
                act = lambda obs: int(self.model.predict(obs, deterministic=True)[0])  # noqa: E731
                curve.append(returned(act, options.episodes))
            return True

    model = DQN("MlpPolicy", gymnasium.make(ENV), seed=seed, device="cpu", **ZOO)
    model.learn(options.steps, callback=Evaluate())
    return curve


def our_curve(algo: str, seed: int, options: argparse.Namespace) -> list[float]:
    from rl_training.experiment.config import load_config
    from rl_training.experiment.registry import get_algorithm_spec
    from rl_training.runs.tracking import read_metrics

    with tempfile.TemporaryDirectory() as folder:
        changes: dict[str, Any] = {
            "seed": seed,
            "total_timesteps": options.steps,
            "checkpoint_interval": 0,
            "output_dir": folder,
            "eval_episodes": options.episodes,
            "algo_kwargs.buffer_capacity": options.steps,
            "algo_kwargs.eval_interval": options.every,
            "algo_kwargs.save_best": "false",
            "algo_kwargs.compile": "false",
        }
        config = load_config(f"{algo}/cartpole", [f"{name}={value}" for name, value in changes.items()])
        result = get_algorithm_spec(algo).train_fn(config)
        rows = read_metrics(result.run_dir)
    return [row["eval_return_mean"] for row in rows if row["kind"] == "eval"]


def online(algo: str, seed: int, options: argparse.Namespace) -> str:
    curve = sb3_curve(seed, options) if algo == "sb3" else our_curve(algo, seed, options)
    first = next((step for step, value in enumerate(curve, 1) if value >= 475.0), None)
    steps = "–" if first is None else f"{first * options.every:,}"
    return f"{steps} | {curve[-1]:.0f} | " + " ".join(f"{value:.0f}" for value in curve)


# ---- from a log


def mixed_log(episodes: int) -> dict[str, Any]:
    """Episodes of a rule that balances the pole and does not mind where the cart goes."""
    draws, env, rows = np.random.default_rng(0), gymnasium.make(ENV), list[Any]()
    for episode in range(episodes):
        share, over = (0.4, 0.7, 1.0)[episode % 3], False
        obs, _ = env.reset(seed=episode)
        while not over:
            by_rule = int(obs[2] + 0.5 * obs[3] > 0)
            action = int(draws.integers(2)) if draws.random() < share else by_rule
            following, reward, terminated, truncated, _ = env.step(action)
            rows.append((obs, action, reward, following, terminated, truncated))
            obs, over = following, terminated or truncated
    obs, actions, rewards, following, ends, cuts = (np.array(part) for part in zip(*rows, strict=True))
    named = {"obs": obs, "actions": actions[:, None], "rewards": rewards, "next_obs": following}
    return {**named, "terminals": ends, "timeouts": cuts & ~ends}


def our_policy(algo: str, seed: int, log: dict[str, Any], updates: int) -> ACT:
    import rl_training
    from rl_training import TransitionDataset
    from rl_training.core.spaces import Choice
    from rl_training.data import DataInfo

    data = TransitionDataset.from_dict(log, info=DataInfo("mixture", choices=(Choice((0.0, 1.0)),)))
    kinds = {"discrete_cql": rl_training.DiscreteCQL, "iql": rl_training.IQL, "bc": rl_training.BC}
    with tempfile.TemporaryDirectory() as folder:
        agent = kinds[algo](
            total_timesteps=updates,
            seed=seed,
            hidden_sizes=WIDTHS,
            batch_size=BATCH,
            learning_rate=RATE,
            judge_at_end=False,
            output_dir=folder,
        )
        agent.learn(dataset=data, quiet=True)
    return lambda obs: int(agent.predict(obs[None])[0, 0])


def d3rlpy_policy(seed: int, log: dict[str, Any], updates: int) -> ACT:
    import d3rlpy

    d3rlpy.seed(seed)
    data = d3rlpy.dataset.MDPDataset(
        log["obs"].astype(np.float32),
        log["actions"],
        log["rewards"],
        log["terminals"],
        log["timeouts"],
        action_space=d3rlpy.ActionSpace.DISCRETE,
    )
    algo = d3rlpy.algos.DiscreteCQLConfig(
        learning_rate=RATE,
        batch_size=BATCH,
        target_update_interval=200,  # its default, 8,000, is longer than such a training
        encoder_factory=d3rlpy.models.VectorEncoderFactory(hidden_units=WIDTHS),
    ).create(device="cpu:0")
    quiet = d3rlpy.logging.NoopAdapterFactory()
    algo.fit(data, n_steps=updates, n_steps_per_epoch=updates, logger_adapter=quiet, show_progress=False)
    return lambda obs: int(algo.predict(obs[None])[0])


def from_log(algo: str, seed: int, options: argparse.Namespace) -> str:
    log = mixed_log(options.logged)
    began = time.process_time()
    maker = d3rlpy_policy if algo == "d3rlpy" else lambda *given: our_policy(algo, *given)
    policy = maker(seed, log, options.updates)
    spent = time.process_time() - began
    mean = len(log["rewards"]) / options.logged
    return f"{returned(policy, options.episodes):.0f} | {mean:.0f} | {spent:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("part", choices=("online", "log"))
    parser.add_argument("--algos", nargs="+", default=["dqn"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--steps", type=int, default=20_000, help="of the environment")
    parser.add_argument("--every", type=int, default=1000, help="steps between two evaluations")
    parser.add_argument("--episodes", type=int, default=20, help="of an evaluation")
    parser.add_argument("--updates", type=int, default=5000, help="from the log")
    parser.add_argument("--logged", type=int, default=300, help="episodes in the log")
    options = parser.parse_args()
    beside = ["steps to 475", "last", f"every {options.every} steps"]
    beside = beside if options.part == "online" else ["return", "log's mean", "CPU seconds"]
    print(f"| algorithm | seed | {' | '.join(beside)} |\n|---|---|---|---|---|")
    for algo in options.algos:
        for seed in options.seeds:
            told = (online if options.part == "online" else from_log)(algo, seed, options)
            print(f"| {algo} | {seed} | {told} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
