"""Do 90 % intervals hold the truth where episodes are much shorter than what counts?

    python benchmarks/judge/short_episodes.py [--plants cart arm] [--length 50 200] [--seeds 0 1 2]

Episodes of 50 rows, cut by a time-out, with a discount of 0.99: a hundred rows count, so most of a value is
of rows after the last one. `cart` is linear with quadratic costs, so that its values are known exactly (a
discounted Lyapunov equation); `arm` is the reaching task of `plants.py`, whose values are simulated. Policies
are the operators without their unrest and controllers that no log shows. `--length` cuts episodes elsewhere,
with as many rows in all.

For each method: intervals that hold the truth, mean error and mean width, both as shares of best minus worst
true value. An error of one sign that the width does not cover is what is wrong with an interval.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from measures import Float64Array, print_rows
from plants import Array, Control, Draws, Plant, arm, controllers, never
from scipy.linalg import solve_discrete_lyapunov

from rl_training.judging import Judgement, judge

GAMMA = 0.99
ROWS = 8000
MOVES, PUSH = np.array([[1.0, 0.2], [0.0, 0.9]]), np.array([[0.0], [0.2]])
SHAKEN, EFFORT = 0.02, 0.05
GAINS: Mapping[str, tuple[float, float]] = {
    "slow": (0.5, 0.5),
    "quick": (1.5, 1.0),
    "tuned": (3.0, 2.0),
    "stiff": (8.0, 4.0),
    "soft": (0.2, 0.3),
    "loose": (1.0, 0.0),
    "weak": (0.1, 0.3),
}
"""Of place and speed; the first two act in the log."""


def cart() -> Plant:
    """A cart that is pushed to the middle: costs are the square of its place and a little of the push."""

    def start(runs: int, draws: Draws) -> Array:
        return draws.uniform((-1.0, -0.3), (1.0, 0.3), (runs, 2))

    def step(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, Any]:
        after = state @ MOVES.T + actions @ PUSH.T + draws.normal(0.0, SHAKEN, state.shape)
        return after, -(state[:, 0] ** 2 + EFFORT * actions[:, 0] ** 2), never(state)

    def made(gains: tuple[float, float]) -> Control:
        return lambda seen: -seen @ np.array([gains]).T

    every = {name: made(gains) for name, gains in GAINS.items()}
    logged = {name: (every[name], 0.01) for name in ("slow", "quick")}
    others = {name: control for name, control in every.items() if name not in logged}
    # bounds that nothing reaches: what is clipped is not linear
    return Plant("cart", start, step, (-20.0,), (20.0,), logged, others, length=50)


def exact_value(gains: tuple[float, float], starts: Float64Array) -> float:
    """-(E s'Ps + g/(1 - g) tr P S) with P = Q + R KK' + g (A - BK)'P(A - BK)."""
    gain = np.array([gains])
    closed = np.sqrt(GAMMA) * (MOVES - PUSH @ gain)
    cost = np.diag([1.0, 0.0]) + EFFORT * gain.T @ gain
    values = solve_discrete_lyapunov(closed.T, cost)
    later = GAMMA / (1.0 - GAMMA) * np.trace(values) * SHAKEN**2
    return -float(np.einsum("ni,ij,nj->n", starts, values, starts).mean() + later)


def truths(plant: Plant, seed: int) -> dict[str, float]:
    """What every policy earns from new starts of the plant."""
    if plant.name == "cart":
        starts = plant.start(1_000_000, np.random.default_rng(seed))
        return {name: exact_value(gains, starts) for name, gains in GAINS.items()}
    return {
        name: plant.true_value(each.control, GAMMA, seed=7000 + seed)
        for name, each in controllers(plant).items()
    }


def row(name: str, method: str, told: Judgement, truth: Mapping[str, float]) -> dict[str, Any]:
    """The intervals of one method beside the truth."""
    scale = max(truth.values()) - min(truth.values())
    held, errors, widths = 0, [], []
    for policy in told.policies:
        own = policy if method == "told" else policy.estimates[method]
        assert own.low is not None and own.high is not None
        held += own.low <= truth[policy.name] <= own.high
        errors.append((own.value - truth[policy.name]) / scale)
        widths.append((own.high - own.low) / scale)
    return {
        "log": name,
        "method": method,
        "held": held,
        "of": len(told.policies),
        "error": float(np.mean(errors)),
        "width": float(np.mean(widths)),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plants", nargs="+", choices=["cart", "arm"], default=["cart", "arm"])
    parser.add_argument("--length", type=int, nargs="+", default=[50])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--settings", type=json.loads, default={}, help="of the judgement, as JSON")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for made in (each for each in (cart, arm) if each.__name__ in options.plants):
        for length in options.length:
            for seed in options.seeds:
                plant = replace(made(), length=length, episodes=ROWS // length)
                data, _ = plant.log(seed)
                settings = {"importance": False, **options.settings}
                told = judge(dict(controllers(plant)), data, gamma=GAMMA, seed=seed, **settings)
                truth = truths(plant, seed)
                name = f"{plant.name}, {length} rows, seed {seed}"
                rows += [row(name, method, told, truth) for method in ("told", "fqe", "model")]
                for policy in told.policies:
                    print(
                        f"{name} {policy.name}: true {truth[policy.name]:.2f} told {policy.value:.2f} "
                        f"[{policy.low:.2f}, {policy.high:.2f}] fitted {policy.estimates['fqe'].value:.2f} "
                        f"model {policy.estimates['model'].value:.2f} {policy.verdict}",
                        flush=True,
                    )
    print_rows(rows)


if __name__ == "__main__":
    main()
