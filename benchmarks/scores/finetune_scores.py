"""Offline, then online: what the policy was worth before, at its lowest, at the end and on average.

    python benchmarks/scores/finetune_scores.py pendulum
    python benchmarks/scores/finetune_scores.py hopper --data hopper-medium-replay-v0.hdf5 --corl path/to/CORL

One run per case and seed, with the packaged configs: offline algorithms go online after their updates, SAC
and REDQ begin from scratch, RLPD is REDQ with the data beside it. With `--corl` the fine-tuning scripts of a
CORL checkout run on the same data, with the same settings and budget. A run that was killed or that has used
up `--minutes` goes on from its checkpoint when the command is repeated; finished ones are read from a file
per seed. The table gives normalised scores of 10 deterministic episodes, raw rewards, mean and standard
deviation over seeds: the evaluation before the first online step, the lowest of the first 10,000 online
steps, the last and the mean of the online phase; and those of the episodes collected while learning.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from offline_scores import RESULTS, ProcessorBudget

from rl_training.core.checkpoints import newest_checkpoint
from rl_training.experiment.config import load_config
from rl_training.runs.resume import resume_training
from rl_training.runs.tracking import online_numbers, read_metrics
from rl_training.runs.train import train

Settings = Mapping[str, object]
FROM_SCRATCH = ("sac", "redq", "rlpd", "redq-5", "rlpd-5")
"""Cases without an offline phase."""
WITHOUT_DATA = ("sac", "redq", "redq-5")
SHOWN = ("online_return_before", "online_return_lowest", "online_return_last", "online_return_mean")


@dataclass(frozen=True)
class Task:
    """An environment, its returns of score 0 and 100, the budget, and the configs that are compared."""

    random: float
    expert: float
    offline: int
    online: int
    eval_interval: int
    seeds: tuple[int, ...]
    cases: Mapping[str, tuple[str, Settings]]

    def score(self, value: float | None) -> float | None:
        return None if value is None else 100.0 * (value - self.random) / (self.expert - self.random)


OFFLINE = ("bc", "td3_bc", "rebrac", "awac", "crr", "iql", "fql", "cql", "cal_ql", "edac")
APPEND = {"algo_kwargs.offline_data": "append"}
RANDOM_LOG = {"algo_kwargs.dataset_kind": "random", "algo_kwargs.dataset_size": 10000}
# The random start has to fit into the 20,000 steps.
EARLY = {"algo_kwargs.learning_starts": 5000}
REDQ = {"algo_kwargs.target_entropy": -1.5}
# A quarter of the time: 5 instead of 20 updates per step, one of them the policy's, as before.
FIVE_UPDATES = {"algo_kwargs.gradient_updates_per_step": 5, "algo_kwargs.policy_delay": 5}

PENDULUM = Task(
    *(-1223.91, -141.46),
    offline=10_000,
    online=3000,
    eval_interval=500,
    seeds=(0, 1, 2),
    cases={
        **{algo: (f"{algo}/pendulum", APPEND if algo in ("awac", "iql") else {}) for algo in OFFLINE},
        "sac": ("sac/pendulum", {}),
        "redq": ("redq/pendulum", {}),
        "rlpd": ("redq/pendulum", {**RANDOM_LOG, "algo_kwargs.critic_layer_norm": True}),
    },
)
HOPPER = Task(
    *(17.92, 4088.71),
    offline=20_000,
    online=20_000,
    eval_interval=2000,
    seeds=(0, 1),
    cases={
        **{algo: (f"{algo}/finetune", {}) for algo in ("td3_bc", "iql", "awac", "cal_ql", "cql")},
        "rebrac": ("rebrac/finetune", {"algo_kwargs.actor_bc_coef": 0.05, "algo_kwargs.critic_bc_coef": 0.5}),
        "sac": ("sac/hopper", EARLY),
        "rlpd": ("redq/rlpd", {}),
        "redq": ("redq/hopper", REDQ),
        "rlpd-5": ("redq/rlpd", FIVE_UPDATES),
        "redq-5": ("redq/hopper", {**REDQ, **FIVE_UPDATES}),
        "wsrl": ("cal_ql/wsrl", {"algo_kwargs.warmup_steps_online": 2000}),
    },
)
TASKS = {"pendulum": PENDULUM, "hopper": HOPPER}
CORL = ("iql", "awac", "cql", "cal_ql")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("task", choices=list(TASKS))
    parser.add_argument("--data", type=Path, help="HDF5 file in place of the data that the configs name")
    parser.add_argument("--cases", nargs="+", help="some of the cases alone, such as iql corl-iql")
    parser.add_argument("--seeds", type=int, nargs="+", help="default: 3 for pendulum, 2 for hopper")
    parser.add_argument("--offline", type=int, help="updates on the data")
    parser.add_argument("--online", type=int, help="steps in the environment")
    parser.add_argument("--corl", type=Path, help="a checkout of CORL, whose scripts then take part")
    parser.add_argument("--minutes", type=float, help="processor time of this call; the next one goes on")
    parser.add_argument("--table", action="store_true", help="show what is there and train nothing")
    parser.add_argument("--output-dir", type=Path, default=RESULTS / "finetune_scores")
    options = parser.parse_args()
    if options.task == "hopper" and options.data is None:
        parser.error("hopper needs --data")
    options.offline = options.offline or TASKS[options.task].offline
    options.online = options.online or TASKS[options.task].online
    options.budget = ProcessorBudget(options.minutes)
    return options


def file_of(options: argparse.Namespace, case: str, seed: int) -> Path:
    return Path(options.output_dir, f"{name_of(options, case, seed)}.json")


def name_of(options: argparse.Namespace, case: str, seed: int) -> str:
    """With its budget: results of another one are not taken for these."""
    return f"{options.task}-{case}-{options.offline}-{options.online}-s{seed}"


def changes_for(options: argparse.Namespace, task: Task, case: str, seed: int) -> dict[str, object]:
    """What differs from the packaged config: the data, the budget and how often is evaluated."""
    scratch = case in FROM_SCRATCH
    changes: dict[str, object] = {
        "seed": seed,
        "total_timesteps": options.online if scratch else options.offline,
        "online_timesteps": 0 if scratch else options.online,
        "eval_episodes": 10,
        "checkpoint_interval": task.eval_interval,
        "output_dir": options.output_dir / "runs" / name_of(options, case, seed),
        "algo_kwargs.eval_interval": task.eval_interval,
        "algo_kwargs.buffer_capacity": options.online,
        "algo_kwargs.keep_checkpoints": 1,
        "algo_kwargs.save_best": "false",
        **task.cases[case][1],
    }
    if options.data is not None and case not in WITHOUT_DATA:
        changes |= {"algo_kwargs.dataset_kind": "hdf5", "algo_kwargs.dataset_path": options.data}
        changes |= {"algo_kwargs.dataset_id": "null"}
    return changes


def finish_run(options: argparse.Namespace, task: Task, case: str, seed: int) -> bool:
    """Train a case, or go on where it was left; whether it is done, and its numbers in a file."""
    begun = time.process_time()
    changes = changes_for(options, task, case, seed)
    place = Path(str(changes["output_dir"]))
    started = next((run for run in sorted(place.glob("*")) if newest_checkpoint(run)), None)
    if started is None:
        config = load_config(task.cases[case][0], [f"{name}={value}" for name, value in changes.items()])
        run = train(config, callbacks=[options.budget], quiet=True)
    else:
        run = resume_training(started, callbacks=[options.budget], quiet=True)
    steps = int(str(changes["total_timesteps"])) + int(str(changes["online_timesteps"]))
    if run.metrics["global_step"] < steps:
        print(f"{case} seed {seed} is at step {run.metrics['global_step']} of {steps}; repeat the command")
        return False
    offline = 0 if case in FROM_SCRATCH else int(str(changes["total_timesteps"]))
    # An evaluation that only a stop of ours has caused is none of the curve's.
    rows = [row for row in read_metrics(run.run_dir) if regular(row, task.eval_interval)]
    seconds = None if started else time.process_time() - begun
    write_numbers(file_of(options, case, seed), rows, offline, seconds)
    return True


def regular(row: Mapping[str, Any], interval: int) -> bool:
    return row["kind"] != "eval" or row["step"] % interval == 0


def write_numbers(file: Path, rows: list[dict[str, Any]], offline: int, seconds: float | None) -> None:
    curve = [(row["step"] - offline, row["eval_return_mean"]) for row in rows if row["kind"] == "eval"]
    numbers = {**online_numbers(rows, offline), "curve": curve, "processor_seconds": seconds}
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(numbers))


def finish_corl(options: argparse.Namespace, task: Task, case: str, seed: int) -> bool:
    """A script of CORL in a process of its own: it finds other modules under the names it imports."""
    script = Path(__file__).with_name("finetune_corl.py")
    command = [sys.executable, str(script), str(options.corl), case.removeprefix("corl-"), str(options.data)]
    budget = [options.offline, options.online, task.eval_interval, seed]
    done = subprocess.run([*command, *map(str, budget), str(file_of(options, case, seed))], check=False)
    return done.returncode == 0


def finish(options: argparse.Namespace, task: Task, case: str, seed: int) -> bool:
    return (finish_corl if case.startswith("corl-") else finish_run)(options, task, case, seed)


def row_of(task: Task, case: str, results: list[dict[str, Any]]) -> str:
    columns = [[task.score(each[name]) for each in results] for name in (*SHOWN, "online_rollout_mean")]
    drops = [max(0.0, b - low) for b, low in zip(columns[0], columns[1], strict=True) if None not in (b, low)]
    seconds = [each["processor_seconds"] for each in results if each["processor_seconds"] is not None]
    cells = [*columns[:2], drops, *columns[2:]]
    minutes = f"{fmean(seconds) / 60:.1f}" if seconds else "–"
    return f"| {case} | {len(results)} | " + " | ".join(map(spread, cells)) + f" | {minutes} |"


def spread(values: list[float | None]) -> str:
    known = [value for value in values if value is not None]
    return f"{fmean(known):.1f} ± {pstdev(known):.1f}" if known else "–"


def cases_of(options: argparse.Namespace, task: Task) -> Iterator[str]:
    yield from options.cases or [*task.cases, *(f"corl-{name}" for name in CORL if options.corl)]


def main() -> int:
    options = arguments()
    task: Task = TASKS[options.task]
    seeds = options.seeds or task.seeds
    missing = [
        (case, seed)
        for case in cases_of(options, task)
        for seed in seeds
        if not options.table and not file_of(options, case, seed).is_file()
    ]
    # A run that was told to stop, or whose budget is used up, ends the call.
    finished = all(finish(options, task, case, seed) for case, seed in missing)
    print("| case | seeds | before | lowest | drop | last | mean | while learning | processor minutes |")
    print("|---|---|---|---|---|---|---|---|---|")
    for case in cases_of(options, task):
        files = [file_of(options, case, seed) for seed in seeds]
        results = [json.loads(file.read_text()) for file in files if file.is_file()]
        if results:
            print(row_of(task, case, results), flush=True)
    return 0 if finished else 1


if __name__ == "__main__":
    raise SystemExit(main())
