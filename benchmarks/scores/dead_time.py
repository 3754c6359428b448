"""A dead time of two steps with a known answer: policies that see their last actions, and such that do not.

x' = 0.9 x + 0.5 a of two steps before, reward -(x² + 0.1 a²), discount 0.95, from x = 1 and no action before:
the best controller that sees x and the last two actions is worth -2.517, the best of x alone -2.716.
The log is of a weak linear law with noise. Nothing in the problem is random, so that values are exact.

    python benchmarks/scores/dead_time.py
"""

import argparse
import tempfile
from typing import Any

import numpy as np

import rl_training
from rl_training.core.registry import algorithm_facts
from rl_training.policies import Policy

GAMMA, LIMIT = 0.95, 3.0
SIGNALS = {"x": "x", "x, lags(a, 2)": "x, lags(a, 2)"}


def following(x: float, waiting: list[float], action: float) -> tuple[float, list[float]]:
    return 0.9 * x + 0.5 * waiting[0], [*waiting[1:], action]


def logged(episodes: int, length: int, seed: int) -> dict[str, list[float]]:
    """A weak law, and enough noise to see what actions do."""
    draws = np.random.default_rng(seed)
    rows: dict[str, list[float]] = {"episode": [], "x": [], "a": []}
    for episode in range(episodes):
        x, waiting = float(draws.normal(0.0, 1.0)), [0.0, 0.0]
        for _ in range(length):
            action = float(np.clip(-0.4 * x + draws.normal(0.0, 0.5), -LIMIT, LIMIT))
            for name, value in (("episode", episode), ("x", x), ("a", action)):
                rows[name].append(value)
            x, waiting = following(x, waiting, action)
    return rows


def value(policy: Policy) -> float:
    """What it earns from x = 1; with a dial, fully turned."""
    policy = policy.with_inputs(**{each.name: each.high for each in policy.inputs})
    controller = policy.controller()
    controller.reset(previous_action=[0.0])
    x, waiting, earned = 1.0, [0.0, 0.0], 0.0
    for step in range(200):
        action = float(controller.act([x]).action[0])
        earned -= GAMMA**step * (x * x + 0.1 * action * action)
        x, waiting = following(x, waiting, action)
    return earned


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--algos", nargs="+", default=["iql", "td3_bc", "lion"])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1])
    parser.add_argument("--updates", type=int, default=6000)
    parser.add_argument("--episodes", type=int, default=300)
    given = parser.parse_args()
    rows = logged(given.episodes, 30, seed=0)
    own: dict[str, dict[str, Any]] = {
        "iql": {"expectile": 0.9, "beta": 30.0},
        # a policy that follows the slope of relu critics needs their kinks close to each other
        "td3_bc": {"alpha": 40.0, "hidden_sizes": [256, 256]},
        "lion": {"model_updates": 3 * given.updates // 5, "behavior_updates": given.updates // 5},
    }
    print("| algorithm | observation | updates | value from x = 1 |\n|---|---|---|---|")
    for algo in given.algos:
        facts = algorithm_facts(algo)
        assert facts is not None
        for name, observations in SIGNALS.items():
            found = []
            for seed in given.seeds:
                log = rl_training.read_log(
                    rows,
                    observations=observations,
                    actions="a",
                    reward="-(x**2 + 0.1 * a**2)",
                    episode="episode",
                )
                with tempfile.TemporaryDirectory() as folder:
                    trained = getattr(rl_training, facts.class_name)(
                        seed=seed,
                        total_timesteps=given.updates,
                        output_dir=folder,
                        gamma=GAMMA,
                        action_low=[-LIMIT],
                        action_high=[LIMIT],
                        learning_rate=1e-3,
                        judge_at_end=False,
                        **{"hidden_sizes": [64, 64], **own.get(algo, {})},
                    )
                    trained.learn(dataset=log, quiet=True)
                    found.append(value(trained.policy))
            told = ", ".join(f"{each:.3f}" for each in found)
            print(f"| {algo} | {name} | {given.updates:,} | {told} |", flush=True)


if __name__ == "__main__":
    main()
