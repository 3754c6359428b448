"""Does the past help? The demo's tank whose settings show three minutes late.

(a) Everything is measured: lags are what is missing. (b) The outflow, (c) level and outflow never reach the
log, though the operators look at them. For each: true discounted value of the operators, of a linear law that
was tuned on the plant itself (it sees what the log holds and the last three settings), and of trainings with
and without history; and what `data inspect` advises.

    python benchmarks/scores/past_of_the_tank.py
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

import rl_training
from rl_training.core.registry import algorithm_facts
from rl_training.data.advice import advise
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.demo import plant
from rl_training.policies import Policy

Array = npt.NDArray[np.float64]
Acts = Callable[[Array], Array]
"""What is logged of the readings, of many runs at once, step by step -> settings."""

GAMMA, DELAY, RUNS, LATEST = 0.95, 3, 300, 120
LOGS = {
    "(a) all logged": (0, 1, 2),
    "(b) outflow hidden": (0, 1),
    "(c) level and outflow hidden": (0,),
}
OWN: dict[str, dict[str, Any]] = {
    "iql": {"expectile": 0.9, "beta": 10.0},
    "td3_bc": {"alpha": 40.0},
    "lion": {"model_updates": 2000, "behavior_updates": 400, "rollouts": 60, "horizon": 40},
}
"""Settings beside the defaults; of lion a third of its work."""


class Waiting:
    """Settings on their way to the plant."""

    def __init__(self, usual: Array) -> None:
        self.waiting = [usual] * DELAY

    def arriving(self, settings: Array) -> Array:
        self.waiting.append(settings)
        return self.waiting.pop(0)


def usual(runs: int) -> Array:
    """What was set before a run begins."""
    return np.tile([56.0, 40.0], (runs, 1))


def logged(episodes: int, seed: int, kept: tuple[int, ...]) -> dict[str, Any]:
    """A table of what the operators did, who see everything."""
    draws = np.random.default_rng(seed)
    readings, late = plant.start(episodes, draws), Waiting(usual(episodes))
    on_duty, minutes = np.arange(episodes) % len(plant.OPERATORS), []
    for _ in range(plant.MINUTES):
        everybody = np.stack([each.set_by_hand(readings, draws) for each in plant.OPERATORS])
        settings = everybody[on_duty, np.arange(episodes)]
        after, scores = plant.step(readings, late.arriving(settings), draws)
        minutes.append(np.column_stack([np.arange(episodes), readings, settings, scores]))
        readings = after
    rows = np.stack(minutes, axis=1).reshape(-1, 7)
    names = ("run", *plant.OBSERVATIONS, *plant.ACTIONS, "score")
    shown = ("run", *(plant.OBSERVATIONS[each] for each in kept), *plant.ACTIONS, "score")
    return {name: rows[:, names.index(name)] for name in shown}


def true_value(acts: Acts, kept: tuple[int, ...], runs: int = RUNS) -> float:
    """Mean discounted score of new runs."""
    draws = np.random.default_rng(99)
    readings, late, total = plant.start(runs, draws), Waiting(usual(runs)), np.zeros(runs)
    for minute in range(LATEST):
        settings = np.clip(acts(readings[:, kept]), 0.0, 100.0)
        readings, scores = plant.step(readings, late.arriving(settings), draws)
        total += GAMMA**minute * scores
    return float(total.mean())


def of_operators() -> dict[str, float]:
    hands = {each.name: partial(each.set_by_hand, draws=np.random.default_rng(5)) for each in plant.OPERATORS}
    return {name: true_value(hand, (0, 1, 2)) for name, hand in hands.items()}


def of_policy(policy: Policy, kept: tuple[int, ...], **inputs: float) -> float:
    controller = policy.controller(RUNS)
    controller.reset(previous_action=usual(1)[0])
    return true_value(lambda seen: controller.act(seen, **inputs).action, kept)


def of_a_tuned_law(kept: tuple[int, ...], rounds: int, seed: int = 0) -> float:
    """The best linear law of what is seen and of the last settings, by the cross-entropy method."""
    draws, width = np.random.default_rng(seed), len(kept) + 2 * DELAY + 1
    centre, spread = np.zeros((width, 2)), np.ones((width, 2))
    units = np.concatenate([np.array([10.0, 20.0, 4.0])[list(kept)], np.full(2 * DELAY, 30.0), [1.0]])
    wanted = np.concatenate([np.array([60.0, 50.0, 14.0])[list(kept)], np.tile(usual(1)[0], DELAY), [0.0]])

    def law(weights: Array) -> Acts:
        past = [usual(RUNS)] * DELAY

        def acts(seen: Array) -> Array:
            table = np.column_stack([seen, *past[-DELAY:], np.ones(RUNS)])
            settings = np.clip(usual(RUNS) + (table - wanted) / units @ weights * 20.0, 0.0, 100.0)
            past.append(settings)
            return settings

        return acts

    best = -np.inf
    for _ in range(rounds):
        tried = centre + spread * draws.normal(size=(40, width, 2))
        values = np.array([true_value(law(each), kept) for each in tried])
        chosen = tried[np.argsort(-values)[:8]]
        centre, spread, best = chosen.mean(axis=0), chosen.std(axis=0) + 0.01, max(best, values.max())
    return best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--algos", nargs="*", default=["iql", "td3_bc", "lion"])
    parser.add_argument("--logs", nargs="+", default=list("abc"), choices=list("abc"))
    parser.add_argument("--histories", nargs="+", type=int, default=[0, 4])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--updates", type=int, default=3000)
    parser.add_argument("--episodes", type=int, default=240)
    parser.add_argument("--rounds", type=int, default=30, help="of tuning the linear law; 0: none")
    given = parser.parse_args()
    operators = of_operators()
    print(f"operators: {', '.join(f'{name} {value:.2f}' for name, value in operators.items())}")
    print("| log | who | history | true value | CPU seconds |\n|---|---|---|---|---|")
    for name, kept in LOGS.items():
        if name[1] not in given.logs:
            continue
        if given.rounds:
            print(
                f"| {name} | tuned linear law | 3 | {of_a_tuned_law(kept, given.rounds):.2f} | |", flush=True
            )
        rows = logged(given.episodes, 0, kept)
        print(f"| {name} | advice | | {advice_on(rows, kept)} | |")
        for algo in given.algos:
            for history in given.histories:
                train(name, kept, rows, algo, history, given)


def advice_on(rows: dict[str, Any], kept: tuple[int, ...]) -> str:
    names = tuple(plant.OBSERVATIONS[each] for each in kept)
    columns = {"obs": np.column_stack([rows[each] for each in names]), "rewards": rows["score"]}
    columns["actions"] = np.column_stack([rows[each] for each in plant.ACTIONS])
    columns = {key: values.astype(np.float32) for key, values in columns.items()}
    columns["episode_ids"] = rows["run"]
    columns["terminated"] = np.zeros(len(rows["run"]), dtype=bool)
    info = DataInfo("tank", observation_names=names, action_names=plant.ACTIONS)
    found = advise(EpisodeLog.build(columns, info=info))
    return "none" if found is None else " ".join(found.sentences)


def train(
    name: str, kept: tuple[int, ...], rows: dict[str, Any], algo: str, history: int, given: argparse.Namespace
) -> None:
    facts, began = algorithm_facts(algo), time.process_time()
    assert facts is not None
    found = []
    for seed in given.seeds:
        log = rl_training.read_log(
            rows,
            observations=[plant.OBSERVATIONS[each] for each in kept],
            actions=list(plant.ACTIONS),
            reward="score",
            episode="run",
            history=history,
        )
        with tempfile.TemporaryDirectory() as folder:
            trained = getattr(rl_training, facts.class_name)(
                seed=seed,
                total_timesteps=given.updates,
                output_dir=folder,
                gamma=GAMMA,
                action_low=[0.0, 0.0],
                action_high=[100.0, 100.0],
                hidden_sizes=[64, 64],
                normalize_observations=True,
                learning_rate=1e-3,
                judge_at_end=False,
                **OWN.get(algo, {}),
            )
            trained.learn(dataset=log, quiet=True)
            policy = trained.policy
            dials = (0.0, 0.5, 1.0) if policy.inputs else ()
            found += [{dial: of_policy(policy, kept, dial=dial) for dial in dials} or of_policy(policy, kept)]
    told = "; ".join(
        ", ".join(f"{value:.2f} at dial {dial:g}" for dial, value in each.items())
        if isinstance(each, dict)
        else f"{each:.2f}"
        for each in found
    )
    seconds = (time.process_time() - began) / len(given.seeds)
    print(f"| {name} | {algo} | {history or 'none'} | {told} | {seconds:.0f} |", flush=True)


if __name__ == "__main__":
    main()
