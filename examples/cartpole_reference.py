"""Train an algorithm that takes choices on CartPole-v1 with its packaged settings, then use the policy."""

import argparse

import rl_training
from rl_training.core.registry import algorithm_classes

WITH_SETTINGS = ("discrete_cql", "dqn", "sac")


def main(algo: str | None = None) -> None:
    classes = {name: class_name for class_name, name in algorithm_classes().items()}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", default=algo or "dqn", choices=WITH_SETTINGS)
    parser.add_argument("--total-timesteps", type=int, default=10_000)
    parser.add_argument("--eval-episodes", type=int, default=20)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--seed", type=int, default=0)
    settings = vars(parser.parse_args())

    name = settings.pop("algo")
    agent = getattr(rl_training, classes[name])(f"{name}/cartpole", **settings)
    result = agent.learn()
    print(f"return {result.metrics['eval_return_mean']:.1f} over {settings['eval_episodes']} episodes")
    print(f"action for a pole that leans to the right: {agent.predict([0.0, 0.0, 0.1, 0.0])}")
    print(f"run directory: {result.run_dir}")


if __name__ == "__main__":
    main()
