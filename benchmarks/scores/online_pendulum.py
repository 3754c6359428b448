"""How many environment steps SAC, TQC and REDQ need to swing the pendulum up.

    python benchmarks/scores/online_pendulum.py --plot docs/algorithms/online_pendulum.png

Every algorithm runs with its packaged Pendulum-v1 config and with the same random start (`learning_starts`),
all seeds as one stack. A run is evaluated on 20 episodes every `--eval-interval` steps and stops when their
mean return reaches the target; the table gives the steps up to then, random ones included, as mean and 95 %
bootstrap interval over seeds. Finished algorithms are read from the results file and not repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from offline_scores import RESULTS

from rl_training.experiment.config import load_config
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.report.statistics import estimate
from rl_training.runs.tracking import read_metrics

COLOURS = {"sac": "tab:blue", "tqc": "tab:orange", "redq": "tab:green"}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--algos", nargs="+", default=list(COLOURS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--target", type=float, default=-200.0)
    parser.add_argument("--eval-interval", type=int, default=250)
    parser.add_argument("--learning-starts", type=int, default=1000)
    parser.add_argument("--output-dir", type=Path, default=RESULTS / "online_pendulum")
    parser.add_argument("--plot", type=Path, help="file of the learning curves")
    return parser.parse_args()


def result_of(algo: str, options: argparse.Namespace) -> dict[str, Any]:
    """Curves of all seeds as (step, return) pairs, and the processor time of the whole stack."""
    file = options.output_dir / f"{algo}.json"
    if file.is_file():
        stored: dict[str, Any] = json.loads(file.read_text())
        return stored
    changes = {
        "seeds": options.seeds,
        "checkpoint_interval": 0,
        "output_dir": options.output_dir / "runs",
        "algo_kwargs.learning_starts": options.learning_starts,
        "algo_kwargs.eval_interval": options.eval_interval,
        "algo_kwargs.early_stopping": f"{{target: {options.target}, patience: 1000000}}",
        "algo_kwargs.save_best": "false",
        "algo_kwargs.compile": "false",
    }
    config = load_config(f"{algo}/pendulum", [f"{name}={value}" for name, value in changes.items()])
    start = time.process_time()
    result = get_algorithm_spec(algo).train_fn(config)
    curves = [curve(member.run_dir) for member in result.members or (result,)]
    stored = {"seeds": options.seeds, "curves": curves, "processor_seconds": time.process_time() - start}
    file.write_text(json.dumps(stored))
    return stored


def curve(run_dir: Path) -> list[tuple[int, float]]:
    return [(row["step"], row["eval_return_mean"]) for row in read_metrics(run_dir) if row["kind"] == "eval"]


def steps_to(target: float, points: list[tuple[int, float]]) -> float:
    """The first evaluation at or above the target; infinite if there is none."""
    return next((float(step) for step, value in points if value >= target), float("inf"))


def report(results: dict[str, dict[str, Any]], target: float) -> None:
    print(f"| algorithm | steps to {target:g} | 95 % interval | each seed | relative to SAC | processor s |")
    print("|---|---|---|---|---|---|")
    steps = {
        algo: [steps_to(target, points) for points in result["curves"]] for algo, result in results.items()
    }
    for algo, values in steps.items():
        mean = estimate([values])
        share = f"{mean.value / np.mean(steps['sac']):.2f}" if "sac" in steps else "-"
        each = ", ".join(f"{value:.0f}" for value in values)
        seconds = results[algo]["processor_seconds"] / len(values)
        print(
            f"| {algo} | {mean.value:.0f} | {mean.low:.0f} to {mean.high:.0f} | {each} | {share} "
            f"| {seconds:.0f} |"
        )


def plot(results: dict[str, dict[str, Any]], target: float, path: Path) -> None:
    """One line per seed, a dot where it reaches the target."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(8, 4.5), layout="constrained")
    for algo, result in results.items():
        for index, points in enumerate(result["curves"]):
            steps, returns = zip(*points, strict=True)
            label = algo.upper() if index == 0 else None
            axes.plot(steps, returns, color=COLOURS.get(algo), linewidth=1, alpha=0.8, label=label)
            axes.plot(steps[-1], returns[-1], "o", color=COLOURS.get(algo), markersize=5)
    axes.axhline(target, color="black", linewidth=0.8, linestyle="--")
    axes.set(xlabel="environment steps", ylabel="return of 20 evaluation episodes", title="Pendulum-v1")
    axes.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    options = arguments()
    options.output_dir.mkdir(parents=True, exist_ok=True)
    results = {algo: result_of(algo, options) for algo in options.algos}
    report(results, options.target)
    if options.plot is not None:
        plot(results, options.target, options.plot)


if __name__ == "__main__":
    main()
