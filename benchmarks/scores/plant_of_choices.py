"""What it is worth to learn switches as switches: the demo's plant with a heater that is on or off.

    python benchmarks/scores/plant_of_choices.py --runs 200 --updates 3000 --seeds 0 1

The heater is off or on (0 or 100 %), the valve has three places (0, 40 and 80 %); operators set what is
nearest to what they mean. IQL learns from the log of their runs, once with choices, and once with two numbers
that are rounded to the nearest place when it acts. In the mixture the valve takes any place. True values are
means over 500 new runs.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import rl_training
from rl_training import IQL
from rl_training.core.spaces import Choice, Spaces
from rl_training.demo.plant import (
    ACTIONS,
    MINUTES,
    OBSERVATIONS,
    OPERATORS,
    Operator,
    start,
    step,
    true_value,
)

GAMMA = 0.95
HEATER, VALVE = Choice((0.0, 100.0)), Choice((0.0, 40.0, 80.0))
PLACES = Spaces.of(3, [HEATER, VALVE])
Nearest = Callable[[Any], Any]


def nearest(settings: Any) -> Any:
    """Both at one of their places."""
    return PLACES.clip(settings)


def heater_nearest(settings: Any) -> Any:
    """The heater at one of its places, the valve anywhere."""
    return np.stack([nearest(settings)[:, 0], np.clip(settings[:, 1], 0.0, 100.0)], axis=1)


def logged(runs: int, seed: int, placed: Nearest) -> dict[str, Any]:
    """Runs in which the operators take turns, as columns."""
    draws = np.random.default_rng([seed, 0])
    on_duty, readings = np.arange(runs) % len(OPERATORS), start(runs, draws)
    minutes = []
    for minute in range(MINUTES):
        meant = np.stack([operator.set_by_hand(readings, draws) for operator in OPERATORS])
        settings = placed(meant[on_duty, np.arange(runs)])
        after, scores = step(readings, settings, draws)
        minutes.append(np.column_stack([np.arange(runs), np.full(runs, minute), readings, settings, scores]))
        readings = after
    rows = np.stack(minutes, axis=1).reshape(runs * MINUTES, -1)
    return dict(zip(("run", "time", *OBSERVATIONS, *ACTIONS, "score"), rows.T, strict=True))


def learned(frame: dict[str, Any], actions: list[str], options: argparse.Namespace, seed: int) -> Any:
    log = rl_training.read_log(
        frame, observations=OBSERVATIONS, actions=actions, reward="score", episode="run", time="time"
    )
    numbers = sum("{" not in name for name in actions)
    bounds = {"action_low": [0.0] * numbers, "action_high": [100.0] * numbers} if numbers else {}
    with tempfile.TemporaryDirectory() as folder:
        agent = IQL(
            total_timesteps=options.updates,
            seed=seed,
            gamma=GAMMA,
            hidden_sizes=[64, 64],
            learning_rate=1e-3,
            normalize_observations=True,
            judge_at_end=False,
            output_dir=folder,
            **bounds,
        )
        agent.learn(dataset=log, quiet=True)
    return agent


def by_hand(operator: Operator, placed: Nearest) -> float:
    """What an operator is worth with these switches."""
    draws = np.random.default_rng(7)
    return true_value(lambda x: placed(operator.set_by_hand(x, draws)), gamma=GAMMA, seed=9)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=200, help="runs of an hour in the log")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    options = parser.parse_args()
    heater, valve = "heater{0,100}", "valve{0,40,80}"
    cases: dict[str, tuple[list[str], Nearest]] = {
        "two switches, learned as choices": ([heater, valve], nearest),
        "two switches, learned as numbers and rounded": (list(ACTIONS), nearest),
        "switch and number, learned as a mixture": ([heater, "valve"], heater_nearest),
        "switch and number, learned as numbers and rounded": (list(ACTIONS), heater_nearest),
    }
    print("| plant and policy | seed | true value | best operator | seconds |\n|---|---|---|---|---|")
    for name, (actions, placed) in cases.items():
        for seed in options.seeds:
            begin = time.process_time()
            agent = learned(logged(options.runs, seed, placed), actions, options, seed)
            spent = time.process_time() - begin
            value = true_value(lambda x, a=agent, p=placed: p(a.predict(x)), gamma=GAMMA, seed=9)
            best = max(by_hand(operator, placed) for operator in OPERATORS)
            print(f"| {name} | {seed} | {value:.2f} | {best:.2f} | {spent:.0f} |", flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
