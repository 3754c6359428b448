"""The Industrial Benchmark's offline sets, made again: LION at the judge's dial beside published returns.

    python benchmarks/judge/industrial_sets.py --environment DIR --out DIR
    python benchmarks/judge/industrial_sets.py --environment DIR --sets bad-0 mediocre-0.4 --out DIR

A baseline (bad, mediocre, optimized: Swazinna et al. 2021, arXiv:2008.05533) acts, and in a share of the
steps a random action takes its place. Set point 70, rewards / 100, returns over 100 steps discounted by .97,
as in the papers. The public files are 100 episodes of 1,000 steps with 30 frames; `--episodes`, `--length`
and `--history` say what is made here. The simulator is what `public_plants.py` installs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from plants import Array, Control, Draws, Plant, write_log
from public_plants import industrial

import rl_training
from rl_training.core.files import write_json_atomic
from rl_training.data.splits import split_episodes

GAMMA, STEPS, RUNS, TRUTH_SEED = 0.97, 100, 100, 1
DIALS = (0.0, 0.25, 0.5, 0.75, 1.0)
BACK = 4
"""Steps that the optimized baseline looks back, and the one it acts in."""

PUBLISHED: Mapping[str, str] = {
    "bad-0": "-76 (1) | -76 | -133 | -311 | -322 | -123",
    "mediocre-0": "-70 (.15) | -160 | -71 | -84 | -80 | -103",
    "mediocre-0.4": "-69 (.5) | -155 | -69 | -75 | -77 | -81",
    "optimized-0.2": "-59 (.6) | -66 | -58 | -60 | – | –",
}
"""LION at its best dial (where), LION at 1, WSBC, MOOSE, TD3+BC, MOPO: off a figure of its authors, ± 1."""


def to(*point: float) -> Control:
    """Velocity, gain and shift go to a point as fast as they may."""
    return lambda frames: np.array(point) - frames[:, :3]


def optimized(frames: Array) -> Array:
    """Of readings now and up to `BACK` steps ago, in units of the benchmark's authors."""
    now, before = frames[:, :5], frames[:, 5:].reshape(len(frames), BACK, 5)
    velocity, shift = (now[:, 0] - 48.75) / 12.31, (before[:, 2, 2] - 49.45) / 29.22
    fatigue, earlier = (before[:, 2, 3] - 37.51) / 31.17, (before[:, 3, 2] - 49.45) / 29.22
    wanted = (70.0 - 55.0) / 28.72
    return np.stack(
        [-velocity - 0.91, 2.0 * fatigue - wanted + 1.43, -3.48 * shift - earlier + 2.0 * wanted + 0.81],
        axis=1,
    )


BASELINES: Mapping[str, Control] = {
    "bad": to(100.0, 100.0, 100.0),
    "mediocre": to(25.0, 25.0, 25.0),
    "optimized": optimized,
}


@dataclass(frozen=True)
class Exploring(Plant):
    """The one operator gives a random action in a share of the steps."""

    share: float = 0.0

    def by_hand(self, name: str, seen: Array, draws: Draws) -> Array:
        meant = self.clipped(self.operators[name][0](seen))
        random = draws.uniform(self.low, self.high, meant.shape)
        return np.where(draws.random((len(meant), 1)) < self.share, random, meant)


def remembering(start: Callable[..., Array], step: Callable[..., Any]) -> tuple[Any, Any]:
    """States with the readings of the last steps behind them, which the baselines look at."""
    width = 5 * BACK

    def started(runs: int, draws: Draws) -> Array:
        state = start(runs, draws)
        return np.concatenate([state, np.tile(state[:, :5], (1, BACK))], axis=1)

    def stepped(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, Any]:
        after, rewards, over = step(state[:, :-width], actions, draws)
        past = np.concatenate([state[:, :5], state[:, -width:-5]], axis=1)
        return np.concatenate([after, past], axis=1), rewards, over

    return started, stepped


def plant_of(environment: Path, name: str, episodes: int, length: int, history: int) -> Exploring:
    baseline, _, share = name.partition("-")
    plain = industrial(environment)
    start, step = remembering(plain.start, plain.step)
    facts = {key: getattr(plain, key) for key in ("low", "high", "read", "columns", "actions")}
    seen = lambda state: np.concatenate([state[:, :5], state[:, -5 * BACK :]], axis=1)  # noqa: E731
    return Exploring(
        name,
        start,
        step,
        operators={baseline: (BASELINES[baseline], 0.0)},
        others={},
        hand_sees=seen,
        length=length,
        episodes=episodes,
        history=history,
        runs=RUNS,
        steps=STEPS,
        share=float(share),
        **facts,
    )


def found_for(plant: Exploring, given: Mapping[str, Any], judgement: Mapping[str, Any]) -> dict[str, Any]:
    """The baseline's return, LION's at every dial, and the position that the judge takes."""
    (name,) = plant.operators
    logged = plant.true_value(plant.operators[name][0], GAMMA, TRUTH_SEED, hand=name)
    pure = replace(plant, share=0.0).true_value(plant.operators[name][0], GAMMA, TRUTH_SEED, hand=name)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        file = Path(folder) / "log.csv"
        columns = write_log(plant, file, 0)
        log = rl_training.read_log(file, **columns, history=plant.history)
        settings = {
            "gamma": GAMMA,
            "action_low": list(plant.low),
            "action_high": list(plant.high),
            "total_timesteps": 4300,
            "judge_at_end": False,
            "output_dir": folder,
            **given,
        }
        agent = rl_training.LION(**settings)
        agent.learn(dataset=log, quiet=True)
        values = [plant.worth(agent.policy, GAMMA, TRUTH_SEED, dial=dial) for dial in DIALS]
        held = split_episodes(log, "auto", 0)[1]
        curve = rl_training.judge({"lion": agent.policy}, held, dial=DIALS, gamma=GAMMA, **judgement).dials[0]
    return {"logged": logged, "baseline": pure, "values": values, "recommended": curve.recommended}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environment", type=Path, required=True)
    parser.add_argument("--sets", nargs="+", choices=list(PUBLISHED), default=list(PUBLISHED))
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--length", type=int, default=1000)
    parser.add_argument("--history", type=int, default=10)
    parser.add_argument("--set", dest="given", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of the judgement, as JSON")
    parser.add_argument("--out", type=Path, required=True, help="what was found is kept there")
    options = parser.parse_args()
    given = {name: yaml.safe_load(value) for name, _, value in (e.partition("=") for e in options.given)}
    options.out.mkdir(parents=True, exist_ok=True)
    print(
        "| set | as logged, baseline alone | LION at the judge's dial | at its best dial | at 1 "
        "| published: LION best (where) | at 1 | WSBC | MOOSE | TD3+BC | MOPO |"
    )
    print("|" + "---|" * 11, flush=True)
    for name in options.sets:
        plant = plant_of(options.environment, name, options.episodes, options.length, options.history)
        file = options.out / f"{plant.name}.json"
        if not file.is_file():
            write_json_atomic(file, found_for(plant, given, options.settings))
        told = json.loads(file.read_text())
        values, taken = told["values"], told["recommended"]
        best = int(np.argmax(values))
        chosen = "none" if taken is None else f"{values[DIALS.index(taken)]:.1f} ({taken:g})"
        print(
            f"| {name} | {told['logged']:.1f}, {told['baseline']:.1f} | {chosen} "
            f"| {values[best]:.1f} ({DIALS[best]:g}) | {values[-1]:.1f} | {PUBLISHED[name]} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
