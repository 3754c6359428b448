"""Train REDQ on Pendulum-v1 with the packaged settings, then evaluate and use the policy."""

import argparse

from rl_training import REDQ
from rl_training.experiment.config import load_config

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--total-timesteps", type=int, default=3_000)
parser.add_argument("--eval-episodes", type=int, default=20)
parser.add_argument("--output-dir", default="runs")
parser.add_argument("--seed", type=int, default=0)
arguments = parser.parse_args()

config = load_config("redq/pendulum", [f"{name}={value}" for name, value in vars(arguments).items()])
agent = REDQ(config)
result = agent.learn()
print(f"return {result.metrics['eval_return_mean']:.1f} over {arguments.eval_episodes} episodes")
print(f"action for the pendulum hanging down: {agent.predict([-1.0, 0.0, 0.0])}")
print(f"run directory: {result.run_dir}")
