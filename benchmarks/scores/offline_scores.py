"""Scores of offline algorithms on D4RL-style HDF5 files, with packaged presets.

    python benchmarks/scores/offline_scores.py --data DIR/halfcheetah-medium-v0.hdf5 \
        --reference=-280.67,16673.12 --algo td3_bc:50000 --algo iql:50000 --algo awac:30000 --seeds 0 1

`td3_bc` is the preset td3_bc/locomotion; another one is named whole (`rebrac/hopper_medium_replay:50000`).
One run per preset and seed. A run that was killed goes on from its checkpoint when the command is repeated,
finished ones are found again, and several commands can share an output directory. The table gives the last
evaluation (10 episodes of the deterministic policy, raw rewards) as mean and standard deviation over seeds,
normalised by the two reference returns. `--minutes` stops a run after that much processor time; `--table`
trains nothing and shows what is there.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

import h5py

from rl_training.config.run import TrainConfig
from rl_training.core.checkpoints import newest_checkpoint
from rl_training.experiment.config import load_config
from rl_training.runs.resume import resume_training
from rl_training.runs.tracking import read_metrics
from rl_training.runs.train import train
from rl_training.runtime.callbacks import Callback, Run

RESULTS = Path(__file__).parent / "results"
Result = dict[str, Any]
Train = Callable[[argparse.Namespace, str, str, int, int], Result]
"""Options, environment, name of what is trained, updates, seed -> what one run ended with."""


class ProcessorBudget(Callback):
    """Stops a run once it has used up its share of processor time."""

    def __init__(self, minutes: float | None) -> None:
        self.seconds = None if minutes is None else 60.0 * minutes
        self.start = time.process_time()

    def spent(self) -> float:
        return time.process_time() - self.start

    def on_step_end(self, run: Run) -> None:
        if self.seconds is not None and self.spent() > self.seconds:
            run.request_stop("processor budget used up")


class WholeBudget(ProcessorBudget):
    """That of all the calls that a run takes to its end."""

    earlier = 0.0

    def spent(self) -> float:
        return self.earlier + super().spent()

    def state_dict(self) -> dict[str, Any]:
        return {"spent": self.spent()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.earlier = float(state["spent"])


def parser(description: str | None) -> argparse.ArgumentParser:
    """Options that the scores of ours and of other code have in common."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--data", type=Path, required=True, help="HDF5 file; its env_id attribute is used")
    made.add_argument("--env-id", help="environment, where the file does not name it")
    made.add_argument("--reference", required=True, help="returns of score 0 and 100: RANDOM,EXPERT")
    made.add_argument("--algo", action="append", required=True, help="NAME:UPDATES, may be repeated")
    made.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    made.add_argument("--table", action="store_true", help="show what is there and train nothing")
    made.add_argument("--output-dir", type=Path, default=RESULTS / "offline_scores")
    return made


def arguments() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--set", action="append", default=[], help="KEY=VALUE for every run")
    made.add_argument("--minutes", type=float, help="processor time per run")
    return made.parse_args()


def reference(options: argparse.Namespace) -> tuple[float, float]:
    """Returns of score 0 and 100."""
    low, high = (float(part) for part in options.reference.split(","))
    return low, high


def file_of(options: argparse.Namespace, name: str, updates: int, seed: int) -> Path:
    """Where the result of one run is kept."""
    return Path(options.output_dir, f"{options.data.stem}-{name.replace('/', '-')}-{updates}-s{seed}.json")


def trained(options: argparse.Namespace, env_id: str, preset: str, updates: int, seed: int) -> Result:
    """Train one run to its end, from the beginning or from the checkpoint that an earlier call has left."""
    place = options.output_dir / "runs" / file_of(options, preset, updates, seed).stem
    started = next((run for run in sorted(place.glob("*")) if newest_checkpoint(run)), None)
    budget = WholeBudget(options.minutes)
    if started is None:
        run = train(config_of(options, env_id, preset, updates, seed, place), callbacks=[budget])
    else:
        run = resume_training(started, callbacks=[budget])
    if run.metrics["signal"] is not None:
        raise SystemExit(f"{preset} seed {seed} was stopped after {run.metrics['gradient_steps']} updates")
    curve = [
        (row["step"], row["eval_return_mean"]) for row in read_metrics(run.run_dir) if row["kind"] == "eval"
    ]
    result = {name: run.metrics[name] for name in ("eval_return_mean", "gradient_steps")}
    return result | {"curve": curve, "processor_seconds": budget.spent()}


def config_of(
    options: argparse.Namespace, env_id: str, preset: str, updates: int, seed: int, place: Path
) -> TrainConfig:
    """The preset on the file: five evaluations, and a checkpoint now and then to go on from."""
    low, high = reference(options)
    changes = {
        "env_id": env_id,
        "seed": seed,
        "total_timesteps": updates,
        "checkpoint_interval": min(1000, updates),
        "output_dir": place,
        "algo_kwargs.dataset_kind": "hdf5",
        "algo_kwargs.dataset_path": options.data,
        "algo_kwargs.dataset_id": "null",
        "algo_kwargs.eval_interval": max(1, updates // 5),
        "algo_kwargs.schedule_steps": updates,
        "algo_kwargs.keep_checkpoints": 1,
        "algo_kwargs.save_best": "false",
        "algo_kwargs.reference_min_return": low,
        "algo_kwargs.reference_max_return": high,
    }
    name = preset if "/" in preset else f"{preset}/locomotion"
    return load_config(name, options.set, start=[f"{key}={value}" for key, value in changes.items()])


def results_of(options: argparse.Namespace, name: str, updates: int, train_one: Train) -> list[Result]:
    """What the runs of all seeds ended with; those that an earlier call has finished are read."""
    with h5py.File(options.data) as file:
        env_id = options.env_id or str(file.attrs["env_id"])
    results = []
    for seed in options.seeds:
        kept = file_of(options, name, updates, seed)
        if not kept.is_file() and not options.table:
            result = train_one(options, env_id, name, updates, seed)
            kept.parent.mkdir(parents=True, exist_ok=True)
            kept.write_text(json.dumps(result))
        if kept.is_file():
            results.append(json.loads(kept.read_text()))
    return results


def print_table(options: argparse.Namespace, train_one: Train) -> None:
    low, high = reference(options)
    print("| data | algorithm | updates | seeds | return | score | processor minutes per run |")
    print("|---|---|---|---|---|---|---|")
    for each in options.algo:
        name, _, updates = each.partition(":")
        results = results_of(options, name, int(updates), train_one)
        if not results:
            continue
        returns = [result["eval_return_mean"] for result in results]
        scores = [100.0 * (value - low) / (high - low) for value in returns]
        made = "/".join(str(int(result["gradient_steps"])) for result in results)
        minutes = fmean(result["processor_seconds"] for result in results) / 60
        print(
            f"| {options.data.stem} | {name} | {made} | {len(results)} | {fmean(returns):.0f} ± "
            f"{pstdev(returns):.0f} | {fmean(scores):.1f} ± {pstdev(scores):.1f} | {minutes:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    print_table(arguments(), trained)
