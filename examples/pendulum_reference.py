"""Train any algorithm on Pendulum-v1 with its packaged settings, then evaluate and use the policy."""

import argparse

import yaml

import rl_training
from rl_training.core.registry import algorithm_classes


def main(algo: str | None = None) -> None:
    classes = {name: class_name for class_name, name in algorithm_classes().items()}
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--algo", default=algo or "sac", choices=classes)
    parser.add_argument("--total-timesteps", type=int, default=10_000)
    parser.add_argument("--eval-episodes", type=int, default=20)
    parser.add_argument("--output-dir", default="runs")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="any other setting")
    settings = vars(parser.parse_args())

    name = settings.pop("algo")
    for each in settings.pop("set"):
        setting, _, value = each.partition("=")
        settings[setting] = yaml.safe_load(value)
    agent = getattr(rl_training, classes[name])(f"{name}/pendulum", **settings)
    result = agent.learn()
    print(f"return {result.metrics['eval_return_mean']:.1f} over {settings['eval_episodes']} episodes")
    print(f"action for the pendulum hanging down: {agent.predict([-1.0, 0.0, 0.0])}")
    print(f"run directory: {result.run_dir}")


if __name__ == "__main__":
    main()
