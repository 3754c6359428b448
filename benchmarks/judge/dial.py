"""What LION's dial is worth on plants with a known truth, beside operators and other algorithms.

python benchmarks/judge/dial.py --plants tank --seeds 0 1 2
python benchmarks/judge/dial.py --plants tank --algos lion --set pull=0.1 --judge --picture dial.html
python benchmarks/judge/dial.py --environment DIR --plants four-tanks industrial motor --seeds 0 1 2 --out DIR

Seeds are trained together, from one log. With `--out` what was found is kept there and found again. Public
plants need the environment that `public_plants.py` installs.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from plants import PLANTS, Plant, cart_pole, write_log
from public_plants import NAMES, public_plants

import rl_training
from rl_training.core.files import write_json_atomic
from rl_training.data import TransitionDataset
from rl_training.data.splits import split_episodes
from rl_training.judging.candidates import sentence_of_dial
from rl_training.judging.verdict import DialCurve
from rl_training.report.charts import Chart, Level, Series
from rl_training.report.content import Page, Section, render_html

DIALS = (0.0, 0.25, 0.5, 0.75, 1.0)
SMALL: Mapping[str, Any] = {"hidden_sizes": (64, 64), "learning_rate": 1e-3}
INSIDE: Mapping[str, Any] = {**SMALL, "model_hidden_sizes": (64, 64), "model_updates": 1500}
ALGORITHMS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "bc": ("BC", SMALL),
    "td3_bc": ("TD3BC", SMALL),
    "td3_bc-bold": ("TD3BC", {**SMALL, "alpha": 40.0}),
    "iql": ("IQL", SMALL),
    "cql": ("CQL", SMALL),
    "lion": ("LION", {}),
    "mopo": ("MOPO", INSIDE),
    "mobile": ("MOBILE", {**INSIDE, "penalty_samples": 3}),
}
"""Class and settings; those that learn by values have the same networks."""

OWN = {**PLANTS, "cart-pole": cart_pole}
GAMMA, LOG_SEED, TRUTH_SEED = 0.99, 0, 1


def log_of(plant: Plant) -> TransitionDataset:
    """The plant's log, with as much of the past as it needs."""
    if not plant.history:
        return plant.log(LOG_SEED)[0]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "log.csv"
        columns = write_log(plant, file, LOG_SEED)
        return rl_training.read_log(file, **columns, history=plant.history)


def trained(
    algo: str, plant: Plant, seeds: Sequence[int], given: Mapping[str, Any]
) -> tuple[list[Any], float]:
    """The policies of an algorithm on the plant's log, and the CPU seconds that each took."""
    name, own = ALGORITHMS[algo]
    settings: dict[str, Any] = {
        "normalize_observations": True,
        "judge_at_end": False,
        "total_timesteps": 5000,
        "action_low": list(plant.low),
        "action_high": list(plant.high),
        **own,
        **given,
    }
    log = log_of(plant)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = getattr(rl_training, name)
        agent = made(seeds=list(seeds), output_dir=folder, eval_episodes=0, **settings)
        start = time.process_time()
        result = agent.learn(log, quiet=True)
        seconds = time.process_time() - start
        runs = [each.run_dir for each in result.members or (result,)]
        return [rl_training.load_policy(run) for run in runs], seconds / len(seeds)


def true_values(policy: Any, plant: Plant) -> list[float]:
    """Of a policy with a dial, at every position."""
    turned = [{"dial": dial} for dial in DIALS] if policy.inputs else [{}]
    if plant.history:
        return [plant.worth(policy, GAMMA, TRUTH_SEED, **each) for each in turned]
    return [plant.true_value(partial(policy.predict, **each), GAMMA, TRUTH_SEED) for each in turned]


def judged(policy: Any, plant: Plant, options: Mapping[str, Any]) -> DialCurve:
    """What the judge says of every position, by episodes that the model has not seen."""
    held = split_episodes(log_of(plant), 0.2, 0)[1]
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


def kept(file: Path | None, find: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What was found before, or is found now."""
    if file is None or not file.is_file():
        found = find()
        if file is not None:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_json_atomic(file, found)
        return found
    known: dict[str, Any] = json.loads(file.read_text())
    return known


def operators_of(plant: Plant) -> dict[str, float]:
    return {
        name: plant.true_value(control, GAMMA, TRUTH_SEED, hand=name)
        for name, (control, _) in plant.operators.items()
    }


def found_by(
    algo: str, plant: Plant, options: argparse.Namespace, given: Mapping[str, Any]
) -> dict[str, Any]:
    """Of all seeds: true values, CPU seconds and, if asked, the position that the judge takes."""
    policies, seconds = trained(algo, plant, options.seeds, given)
    found = {"values": [true_values(each, plant) for each in policies], "seconds": seconds, "curves": []}
    if (options.judge or options.picture) and algo == "lion":
        curves = [judged(each, plant, options.settings) for each in policies]
        found["curves"] = [curve.recommended for curve in curves]
        if options.picture and plant.name == options.plants[0]:
            worths = operators_of(plant)
            options.picture.write_text(picture(curves[0], found["values"][0], worths), encoding="utf-8")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--plants", nargs="+", choices=sorted([*OWN, *NAMES]), default=sorted(OWN))
    parser.add_argument("--environment", type=Path, help="where the simulators of public plants are")
    parser.add_argument("--algos", nargs="+", choices=sorted(ALGORITHMS), default=list(ALGORITHMS))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--set", dest="given", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--judge", action="store_true", help="also say which position the judge takes")
    parser.add_argument("--picture", type=Path, help="page of the first plant's dial, judged and true")
    parser.add_argument("--settings", type=json.loads, default={}, help="settings of the judgement, as JSON")
    parser.add_argument("--out", type=Path, help="keep what is found there")
    options = parser.parse_args()
    given = {name: yaml.safe_load(value) for name, _, value in (e.partition("=") for e in options.given)}
    if options.environment is None and not OWN.keys() >= set(options.plants):
        raise SystemExit(f"--environment is needed for {', '.join(NAMES)}: public_plants.py makes it")
    known = {**OWN, **(public_plants(options.environment) if options.environment else {})}
    print("| plant | who | true value (lion: at dial 0 / .25 / .5 / .75 / 1) | CPU seconds, judge |")
    print("|---|---|---|---|", flush=True)
    for name in options.plants:
        plant = known[name]()
        folder = options.out / name if options.out else None
        worths = kept(folder and folder / "operators.json", partial(operators_of, plant))
        row(name, "the log", [[float(np.mean(list(worths.values())))]])
        best = max(worths, key=lambda who: worths[who])
        row(name, f"the best operator, {best}", [[worths[best]]])
        for algo in options.algos:
            file = folder and folder / f"{algo}.json"
            found = kept(file, partial(found_by, algo, plant, options, given))
            chosen = ", ".join(str(each) for each in found["curves"])
            note = f"{found['seconds']:.0f}" + (f", takes {chosen}" if chosen else "")
            row(name, algo, found["values"], note)


if __name__ == "__main__":
    main()
