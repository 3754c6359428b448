"""Learning within limits: true return and cost of what is learned from a log, and what the judge said.

    python benchmarks/scores/limits.py --task tank --seeds 0 1 --judge
    SAFETY/bin/python benchmarks/scores/limits.py --task ball --seeds 0

`tank` is the demo's plant, in which a gasket must not be above 59 °C while the score wants 60: the cost of a
minute is 1 above 59. `ball` is SafetyBallCircle-v0 of bullet-safety-gym 1.4.0 (`pip install --no-deps
bullet-safety-gym pybullet` into an environment of its own, since it pins an old gymnasium): a ball earns by
circling at a radius of 7, and costs 1 in every step beyond |x| = 6. Its log is that of a simple controller
with other radii, speeds and margins in every episode.

Unconstrained IQL and LION, both with penalties of several weights, CAPS under three limits chosen while it
runs, imitation of all episodes and of those that kept the limit. With `--judge` each is judged by the log
alone against the middle limit, and beside it stands whether what was said is true.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

import rl_training
from rl_training import TransitionDataset
from rl_training.config.limits import Limit
from rl_training.data import load_transition_dataset
from rl_training.demo.plant import ACTIONS, MINUTES, OBSERVATIONS, start, step, write_log

TOO_HOT = 59.0


@dataclass(frozen=True)
class Outcome:
    """What a policy truly does: the return of an episode, and the cost as its limit counts it."""

    ret: float
    cost: float


Play = Callable[[Any, Mapping[str, float]], Outcome]
"""A policy, and inputs that are chosen -> what is true of it."""


@dataclass(frozen=True)
class Task:
    """A log, what is known of it, and the truth."""

    name: str
    log: TransitionDataset
    settings: Mapping[str, Any]
    cost: str
    limits: Sequence[str]
    steps: int
    gamma: float
    weights: Sequence[float]
    play: Play

    @property
    def middle(self) -> str:
        return self.limits[len(self.limits) // 2]

    def bound(self, limit: str) -> float:
        return Limit.parse(self.cost, limit).bound


# ---- the demo's plant


def tank(seed: int, runs: int, episodes: int) -> Task:
    columns = {
        "observations": list(OBSERVATIONS),
        "actions": list(ACTIONS),
        "reward": "score",
        "episode": "run",
        "time": "time",
    }
    costs, gamma = {"hot": f"T_tank > {TOO_HOT}"}, 0.95
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tank.csv"
        write_log(file, runs=runs, seed=seed)
        log = load_transition_dataset(dataset_path=str(file), columns=columns, costs=costs)
    bounds = {"action_low": [0.0, 0.0], "action_high": [100.0, 100.0]}

    def play(policy: Any, inputs: Mapping[str, float]) -> Outcome:
        """New hours; the cost per step counts later minutes less, as the judge does."""
        draws = np.random.default_rng([seed, 1])
        readings, total, hot, weights = start(episodes, draws), np.zeros(episodes), 0.0, 0.0
        controller = policy.controller(episodes)
        for minute in range(MINUTES):
            weights += gamma**minute
            hot += gamma**minute * float((readings[:, 0] > TOO_HOT).mean())
            settings = controller.act(readings.astype(np.float32), **inputs).action
            readings, scores = step(readings, settings, draws)
            total += scores
        return Outcome(float(total.mean()), hot / weights)

    settings = {**bounds, "costs": costs}
    limits = ("0.3", "0.4", "0.6")
    return Task("tank", log, settings, "hot", limits, MINUTES, gamma, (0.1, 0.3, 1.0), play)


# ---- a ball that circles


@dataclass(frozen=True)
class Habit:
    """How somebody steers the ball: which circle, how near to the borders, how fast, how shakily."""

    radius: float
    border: float
    speed: float
    unrest: float

    def act(self, seen: Any, draws: np.random.Generator) -> Any:
        place, velocity = seen[:2] / 0.1, seen[2:4] / 0.2
        angle = np.arctan2(place[1], place[0]) - 0.35
        goal = self.radius * np.array([np.cos(angle), np.sin(angle)])
        goal[0] = np.clip(goal[0], -self.border, self.border)
        towards = goal - place
        wanted = self.speed * towards / max(1e-6, float(np.linalg.norm(towards)))
        meant = 2.0 * (wanted - velocity) + draws.normal(0.0, self.unrest, 2)
        return np.clip(meant, -1.0, 1.0).astype(np.float32)


def episode(env: Any, seed: int, act: Callable[[Any], Any], told: Callable[[float], None]) -> Iterator[Any]:
    """Rows (seen, done, reward, seen next, cost); where the ball begins is drawn from numpy's own stream."""
    np.random.seed(seed)
    seen, _ = env.reset(seed=seed)
    for _ in range(200):
        action = act(seen)
        following, reward, _, _, info = env.step(action)
        told(float(info["cost"]))
        yield seen, action, float(reward), following, float(info["cost"])
        seen = following


def ball(seed: int, runs: int, episodes: int) -> Task:
    import bullet_safety_gym  # noqa: F401  # registers it
    import gymnasium as gym

    env = gym.make("SafetyBallCircle-v0").unwrapped
    draws, rows = np.random.default_rng([seed, 0]), list[Any]()
    for run in range(runs):
        habit = Habit(*(draws.uniform(low, high) for low, high in ((6, 9), (4, 9), (2, 5), (0.1, 0.6))))
        rows += episode(env, 1000 * seed + run, lambda seen, h=habit: h.act(seen, draws), lambda cost: None)
    seen, done, rewards, following, costs = (
        np.array(part, dtype=np.float32) for part in zip(*rows, strict=True)
    )
    ends = np.arange(len(rows)) % 200 == 199
    values = {"obs": seen, "actions": done, "rewards": rewards, "next_obs": following, "costs": costs}
    log = TransitionDataset.from_dict({**values, "dones": np.zeros(len(rows)), "truncations": ends})

    def play(policy: Any, inputs: Mapping[str, float]) -> Outcome:
        """New episodes, and what one costs. The environment tells it, so it is given to whoever counts."""
        counts = {each.name for each in policy.inputs if each.counted}
        returns, spent = list[float](), list[float]()
        for number in range(episodes):
            controller, paid, steps = policy.controller(), [0.0], [0]

            def act(seen: Any, c: Any = controller, p: Any = paid, s: Any = steps) -> Any:
                told = {"spent": sum(p), "steps": s[0]} if counts else {}
                s[0] += 1
                return c.act(seen.astype(np.float32), **inputs, **told).action

            earned = [row[2] for row in episode(env, 10_000_000 + number, act, paid.append)]
            returns.append(sum(earned))
            spent.append(sum(paid))
        return Outcome(float(np.mean(returns)), float(np.mean(spent)))

    bounds = {"action_low": [-1.0, -1.0], "action_high": [1.0, 1.0]}
    limits = ("5 per episode", "10 per episode", "20 per episode")
    return Task("ball", log, bounds, "cost", limits, 200, 0.99, (0.3, 1.0, 3.0), play)


TASKS: dict[str, Callable[[int, int, int], Task]] = {"tank": tank, "ball": ball}


# ---- what is learned

METHODS = ("BC", "IQL", "LION", "CAPS")


def agents(
    task: Task, seed: int, options: argparse.Namespace
) -> Iterator[tuple[str, Any, Mapping[str, float]]]:
    """Name, policy and chosen inputs of everything that is compared."""
    shared = {
        "seed": seed,
        "gamma": task.gamma,
        "hidden_sizes": [64, 64],
        "normalize_observations": True,
        "judge_at_end": False,
        **task.settings,
    }
    short = {"total_timesteps": options.updates, "learning_rate": 1e-3, **shared}
    stages = {
        "model_updates": options.updates // 3,
        "behavior_updates": max(1, options.updates // 10),
        "policy_updates": options.search,
        "horizon": options.horizon,
        "rollouts": 50,
        "dial": 1.0,
        "validation_share": 0.0,
    }
    stages["total_timesteps"] = stages["model_updates"] + stages["behavior_updates"] + options.search

    def learned(kind: Any, **settings: Any) -> Any:
        with tempfile.TemporaryDirectory() as folder:
            agent = kind(output_dir=folder, **settings)
            agent.learn(dataset=task.log, quiet=True)
            return agent.policy

    no_gamma = {name: value for name, value in short.items() if name != "gamma"}
    limits = {"limits": {task.cost: task.middle}}
    if "BC" in options.methods:
        yield "BC", learned(rl_training.BC, **no_gamma), {}
        yield "BC-safe", learned(rl_training.BC, **no_gamma, **limits, episodes_within_limits=True), {}
    for weight in options.weights or (0.0, *task.weights):
        priced = {"penalty": {task.cost: weight}} if weight else {}
        if "IQL" in options.methods:
            yield f"IQL, weight {weight:g}", learned(rl_training.IQL, **short, **priced), {}
        if "LION" not in options.methods:
            continue
        yield f"LION, weight {weight:g}", learned(rl_training.LION, **{**shared, **stages}, **priced), {}
    if "CAPS" not in options.methods:
        return
    scaled = {"reward_scale": 0.1} if task.name == "ball" else {}  # the authors' for this kind of task
    policy = learned(rl_training.CAPS, **short, **limits, **scaled, episode_steps=task.steps)
    for limit in task.limits:
        yield f"CAPS at {limit}", policy, {"limit": task.bound(limit)}


def measured(task: Task, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Every policy's truth, and what the judge said of it."""
    rows, policies = list[dict[str, Any]](), dict[str, Any]()
    for name, policy, inputs in agents(task, seed, options):
        began = time.process_time()
        true = task.play(policy, inputs)
        limit = name.partition(" at ")[2] or task.middle
        rows.append({"name": name, "return": true.ret, "cost": true.cost, "limit": task.bound(limit)})
        policies[name] = policy.with_inputs(**inputs)
        print(f"| {task.name} {seed} | {name} | {true.ret:.1f} | {true.cost:.3g} |", flush=True)
        rows[-1]["played"] = time.process_time() - began
    totals, steps = task.log.episode_costs()
    logged = {"return": float(task.log.episode_returns().mean())}
    logged["cost"] = float((totals.sum() / steps.sum()) if task.name == "tank" else totals.mean())
    found = {"task": task.name, "seed": seed, "logged": logged, "rows": rows}
    if options.judge:
        began = time.process_time()
        judgement = rl_training.judge(
            policies,
            task.log,
            limits={task.cost: task.middle},
            gamma=task.gamma,
            **json.loads(options.settings),
        )
        for row in rows:
            told = judgement.named(row["name"])
            (cost,) = told.costs
            row |= {"said": cost.outcome, "low": cost.low, "high": cost.high, "verdict": told.verdict}
            kept = row["cost"] <= task.bound(task.middle)
            row["right"] = {"keeps": kept, "breaks": not kept}.get(cost.outcome or "")
            print(
                f"| {task.name} {seed} | {row['name']} | judged {cost.low:.3g} to {cost.high:.3g} | "
                f"{cost.outcome} | {'right' if row['right'] else 'wrong' if row['right'] is False else ''} |",
                flush=True,
            )
        found["judging"] = time.process_time() - began
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--task", choices=TASKS, default="tank")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--methods", nargs="+", default=METHODS, choices=METHODS)
    parser.add_argument("--weights", type=float, nargs="+", help="of penalties, 0 for none")
    parser.add_argument("--runs", type=int, default=120, help="episodes in the log")
    parser.add_argument("--episodes", type=int, default=500, help="new episodes for the truth")
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--search", type=int, default=250, help="updates of LION's policy")
    parser.add_argument("--horizon", type=int, default=30)
    parser.add_argument("--judge", action="store_true")
    parser.add_argument("--settings", default="{}", help="settings of the judge, as JSON")
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    options = parser.parse_args()
    print("| task, seed | policy | true return | true cost |\n|---|---|---|---|")
    found = []
    for seed in options.seeds:
        began = time.process_time()
        task = TASKS[options.task](seed, options.runs, options.episodes)
        found.append(measured(task, seed, options))
        found[-1]["seconds"] = time.process_time() - began
        print(f"{task.name} {seed}: logged {found[-1]['logged']}, {found[-1]['seconds']:.0f} CPU seconds")
        if options.out:
            options.out.write_text(json.dumps(found, indent=1))
    judged = [row for each in found for row in each["rows"] if "said" in row]
    if judged:
        false_keeps = sum(row["said"] == "keeps" and not row["right"] for row in judged)
        told = [row for row in judged if row["right"] is not None]
        right = sum(row["right"] for row in told)
        print(f"{len(told)} of {len(judged)} told, {right} right, {false_keeps} false keeps")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
