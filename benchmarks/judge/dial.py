"""What LION's dial is worth on plants with a known truth, beside operators and other algorithms.

python benchmarks/judge/dial.py --plants tank --seeds 0 1 2
python benchmarks/judge/dial.py --plants tank --algos lion --set pull=0.1 --judge --picture dial.html
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from plants import PLANTS, Plant

import rl_training
from rl_training.data.splits import split_episodes
from rl_training.judging.candidates import sentence_of_dial
from rl_training.judging.verdict import DialCurve
from rl_training.report.charts import Chart, Level, Series
from rl_training.report.content import Page, Section, render_html

DIALS = (0.0, 0.25, 0.5, 0.75, 1.0)
CLASSES = {"bc": "BC", "td3_bc": "TD3BC", "iql": "IQL", "lion": "LION"}
GAMMA, TRUTH_SEED = 0.99, 1


def trained(algo: str, plant: Plant, seed: int, given: Mapping[str, Any]) -> tuple[Any, float]:
    """The policy of an algorithm on the plant's log, and the CPU seconds that it took."""
    settings: dict[str, Any] = {
        "normalize_observations": True,
        "judge_at_end": False,
        "total_timesteps": 5000,
        **({} if algo == "lion" else {"hidden_sizes": (64, 64), "learning_rate": 1e-3}),
        **given,
    }
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(rl_training, CLASSES[algo])
        agent = made(seed=seed, output_dir=folder, eval_episodes=0, **settings)
        start = time.process_time()
        agent.learn(plant.log(seed)[0], quiet=True)
        return agent.policy, time.process_time() - start


def true_values(policy: Any, plant: Plant) -> list[float]:
    """Of a policy with a dial, at every position."""
    turned = [{"dial": dial} for dial in DIALS] if policy.inputs else [{}]
    return [plant.true_value(partial(policy.predict, **each), GAMMA, TRUTH_SEED) for each in turned]


def judged(policy: Any, plant: Plant, seed: int, options: Mapping[str, Any]) -> DialCurve:
    """What the judge says of every position, by episodes that the model has not seen."""
    held = split_episodes(plant.log(seed)[0], 0.2, 0)[1]
    return rl_training.judge({"lion": policy}, held, dial=DIALS, gamma=GAMMA, **options).dials[0]


def picture(curve: DialCurve, truth: Sequence[float], operators: Mapping[str, float]) -> str:
    """A page with one chart: what the judge says of every position, and what it is truly worth."""
    told = [(each.dial, each.value) for each in curve.positions]
    band = [(each.dial, each.low, each.high) for each in curve.positions]
    best = max(operators, key=lambda name: operators[name])
    chart = Chart(
        "Value against dial",
        "dial, from 0 (as today) to 1 (the model's best)",
        "discounted score",
        (
            Series("the judge, by the log alone (90 % interval)", 1, told, band),
            Series("the truth, tried on the plant", 2, list(zip(DIALS, truth, strict=True))),
        ),
        levels=(Level(f"the best operator, {best}", operators[best]),),
    )
    return render_html(Page("The dial", (sentence_of_dial(curve),), (), (Section("", (chart,)),)))


def row(name: str, who: str, found: Sequence[Sequence[float]], note: str = "") -> None:
    numbers = np.array(found)
    told = " / ".join(f"{each:.1f}" for each in numbers.mean(0))
    spread = f" ± {' / '.join(f'{each:.1f}' for each in numbers.std(0))}" if len(numbers) > 1 else ""
    print(f"| {name} | {who} | {told}{spread} | {note} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plants", nargs="+", choices=sorted(PLANTS), default=sorted(PLANTS))
    parser.add_argument("--algos", nargs="+", choices=sorted(CLASSES), default=list(CLASSES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", dest="given", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--judge", action="store_true", help="also say which position the judge takes")
    parser.add_argument("--picture", type=Path, help="page of the first plant's dial, judged and true")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of the judgement, as JSON")
    options = parser.parse_args()
    given = {name: yaml.safe_load(value) for name, _, value in (e.partition("=") for e in options.given)}
    print("| plant | who | true value (lion: at dial 0 / .25 / .5 / .75 / 1) | CPU seconds, judge |")
    print("|---|---|---|---|", flush=True)
    for name in options.plants:
        plant = PLANTS[name]()
        operators = {
            operator: plant.true_value(control, GAMMA, TRUTH_SEED, hand=operator)
            for operator, (control, _) in plant.operators.items()
        }
        for operator, worth in operators.items():
            row(name, f"operator {operator}", [[worth]])
        for algo in options.algos:
            runs = [trained(algo, plant, seed, given) for seed in options.seeds]
            note = f"{np.mean([each[1] for each in runs]):.0f}"
            worths = [true_values(each[0], plant) for each in runs]
            if (options.judge or options.picture) and algo == "lion":
                pairs = zip(runs, options.seeds, strict=True)
                curves = [judged(each[0], plant, seed, options.settings) for each, seed in pairs]
                note += f", takes {', '.join(str(curve.recommended) for curve in curves)}"
                if options.picture and name == options.plants[0]:
                    options.picture.write_text(picture(curves[0], worths[0], operators), encoding="utf-8")
            row(name, algo, worths, note)


if __name__ == "__main__":
    main()
