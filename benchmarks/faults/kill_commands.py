"""Kill every command that writes, again and again, and compare what it leaves with an undisturbed run.

    python benchmarks/faults/kill_commands.py --kills 30
    python benchmarks/faults/kill_commands.py train_offline train_online --kills 100

Each attempt is a forked process. It kills itself with SIGKILL at one of the moments at which it touches the
file system, drawn at random; every other one is killed from outside at any time. The next attempt goes on
in what was left behind. A file under its final name must be whole after every kill, and at the end everything
must equal, bit for bit, what the same commands make undisturbed.
"""

import argparse
import contextlib
import ctypes
import multiprocessing
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path

import torch
from killing import STATE, descendants, differences

from rl_training.cli import main as command_line
from rl_training.core.checkpoints import load_checkpoint, newest_checkpoint
from rl_training.experiment.config import load_config
from rl_training.runs.train import train
from rl_training.runtime import record as resumable_collection
from rl_training.sweeps.plan import run_status

SUBREAPER = 36
"""Option of prctl by which this process becomes the parent of orphans, and can wait for them."""
TOUCHES = {"open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"}
TINY = {
    **{"checkpoint_interval": 5, "log_interval": 10, "eval_episodes": 1, "total_timesteps": 60},
    **{"algo_kwargs.hidden_sizes": [16, 16], "algo_kwargs.batch_size": 16, "algo_kwargs.compile": "false"},
    "algo_kwargs.eval_interval": 25,
}
OFFLINE = {**TINY, "algo_kwargs.dataset_size": 300}
ONLINE = {**TINY, "algo_kwargs.learning_starts": 20}
SWEEP = """
base: td3_bc/demo
variants: [{{name: td3_bc, base: td3_bc/demo}}, {{name: iql, base: iql/pendulum}}]
grid: {grid}
seeds: [0, 1]
"""
SEARCH = """
base: td3_bc/demo
space: {{algo_kwargs.gamma: {{low: 0.9, high: 0.99}}, {space}}}
trials: 8
"""


@dataclass(frozen=True)
class Job:
    """A command by what it is called with in a folder, and what must come out of it."""

    arguments: Callable[[Path], list[str]]
    makes_files: bool = False
    """whether it makes files that are whole whenever they are there, and equal at the end"""
    unequal: Callable[[Path, Path], list[str]] = lambda disturbed, calm: []
    """what else differs between the two folders"""


def settings(values: dict[str, object]) -> list[str]:
    return [f"--set={key}={value}" for key, value in values.items()]


def train_or_resume(config: str, values: dict[str, object]) -> Callable[[Path], list[str]]:
    def arguments(folder: Path) -> list[str]:
        saved = [run for run in sorted(folder.glob("*")) if newest_checkpoint(run)]
        if saved:
            return ["resume", "-k", str(saved[0]), "-q"]
        return ["train", "--config", config, *settings(values), "--output-dir", str(folder), "-q"]

    return arguments


def unequal_runs(disturbed: Path, calm: Path) -> list[str]:
    """Runs that are not in both folders, not done, or not equal in any part of their state.

    A run that was killed before its first save is begun anew in a directory of its own: what is compared are
    the runs that have saved something, in order.
    """
    found = []
    runs = [
        sorted(file.parent for file in root.rglob("config.yaml") if newest_checkpoint(file.parent))
        for root in (disturbed, calm)
    ]
    if len(runs[0]) != len(runs[1]):
        return [f"{len(runs[0])} runs, not {len(runs[1])}"]
    for pair in zip(*runs, strict=True):
        name = pair[0].relative_to(disturbed)
        if run_status(pair[0]).state != "done":
            found.append(f"{name} is not complete")
            continue
        states = [load_checkpoint(run) for run in pair]
        parts = [key for key in STATE if key in states[0] or key in states[1]]
        found += [f"{name} {line}" for key in parts for line in differences(*(s[key] for s in states), key)]
    return found or ([] if runs[0] else ["there is no run"])


def unequal_trials(disturbed: Path, _: Path) -> list[str]:
    """Every trial of a search, trained again from its config alone, must be what the search left."""
    found, trials = [], sorted(file.parent for file in disturbed.rglob("summary.json"))
    for run in trials:
        left = load_checkpoint(run)
        reached = left["counters"]["global_step"]  # a trial that was pruned stops early
        with tempfile.TemporaryDirectory() as place:
            config = load_config(run / "config.yaml").replace(output_dir=place, total_timesteps=reached)
            right = load_checkpoint(train(config, quiet=True).run_dir)
        found += [f"{run.name} {line}" for line in differences(left["learner"], right["learner"])]
    return found + ([] if len(trials) == 8 else [f"{len(trials)} trials, not 8"])


@cache
def samples() -> Path:
    """A finished run and a log, which convert, export and report read."""
    folder = Path(tempfile.mkdtemp())
    calls = [
        [*train_or_resume("td3_bc/demo", OFFLINE)(folder / "runs")],
        [
            "data",
            "collect",
            "--env-id",
            "Pendulum-v1",
            "--rows",
            "3000",
            "--out",
            str(folder / "log.hdf5"),
            "-q",
        ],
    ]
    assert [in_a_child(call)[0] for call in calls] == [0, 0]
    return folder


def file_job(*words: str) -> Job:
    """A command that reads `samples` (`{run}`, `{log}`) and makes files in the folder (`{out}`)."""

    def arguments(folder: Path) -> list[str]:
        (run,) = (samples() / "runs").iterdir()
        places = {"{run}": run, "{log}": samples() / "log.hdf5", "{out}": folder}
        return [str(places.get(word.partition("/")[0], "")) + word[word.find("}") + 1 :] for word in words]

    return Job(arguments, makes_files=True)


def study_job(command: str, text: str, unequal: Callable[[Path, Path], list[str]]) -> Job:
    def arguments(folder: Path) -> list[str]:
        folder.mkdir(exist_ok=True)
        file = folder.parent / f"{command}.yaml"
        file.write_text(text)
        return [command, str(file), "--workers", "2", "--output-dir", str(folder)]

    return Job(arguments, unequal=unequal)


def in_lists(values: dict[str, object], around: str) -> str:
    return ", ".join(f"{key}: {around.format(value)}" for key, value in values.items())


JOBS = {
    "train_offline": Job(train_or_resume("td3_bc/demo", OFFLINE), unequal=unequal_runs),
    "train_online": Job(train_or_resume("sac/pendulum", ONLINE), unequal=unequal_runs),
    "collect": file_job(
        *("data", "collect", "--env-id", "Pendulum-v1", "--rows", "3000", "--overwrite", "-q"),
        *("--out", "{out}/log.npz"),
    ),
    "convert": file_job("data", "convert", "{log}", "{out}/log.parquet", "--overwrite"),
    "export": file_job(*("export", "-k", "{run}", "--out", "{out}/policy.safetensors")),
    "report": file_job("report", "{run}", "--out", "{out}/report.html"),
    "sweep": study_job("sweep", SWEEP.format(grid="{" + in_lists(OFFLINE, "[{}]") + "}"), unequal_runs),
    "tune": study_job("tune", SEARCH.format(space=in_lists(OFFLINE, "{{choices: [{}]}}")), unequal_trials),
}


def in_a_child(
    arguments: list[str], *, strike_at: int | None = None, seconds: float | None = None
) -> tuple[int, int]:
    """Exit status of a command, and how often it touched files; killed at a touch, or after some seconds."""
    count = multiprocessing.get_context("fork").Value("i", 0)
    child = os.fork()
    if child == 0:
        watch_touches(count, strike_at)
        with open(os.devnull, "w") as nothing, contextlib.redirect_stdout(nothing):
            os._exit(command_line(arguments))
    status = wait_for(child, seconds)
    if status is None:
        for victim in [child, *descendants(child)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        status = os.waitpid(child, 0)[1]
    with contextlib.suppress(ChildProcessError):  # workers that have lost their sweep save and end
        while True:
            os.wait()
    return status, count.value


def wait_for(child: int, seconds: float | None) -> int | None:
    """The status of a child that ends in time."""
    deadline = None if seconds is None else time.monotonic() + seconds
    while deadline is not None and time.monotonic() < deadline:
        ended, status = os.waitpid(child, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
    return os.waitpid(child, 0)[1] if deadline is None else None


def watch_touches(count, strike_at: int | None) -> None:  # type: ignore[no-untyped-def]  # a shared number
    """Count what this process does to files; at one of these moments it dies."""
    own = os.getpid()

    def hook(event: str, _: object) -> None:
        if event in TOUCHES and os.getpid() == own:
            count.value += 1
            if count.value == strike_at:
                os.kill(own, signal.SIGKILL)

    sys.addaudithook(hook)


def unequal_parts(job: Job, disturbed: Path, calm: Path) -> list[str]:
    """What differs between a finished job and the undisturbed one."""
    found = job.unequal(disturbed, calm)
    if job.makes_files:
        left, right = (
            {path.name: path.read_bytes() for path in folder.glob("*")} for folder in (disturbed, calm)
        )
        found += sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))
    return found


def check(name: str, kills: int, rng: random.Random) -> list[str]:
    """Kill the job so many times; whenever it comes to its end it is compared and begins again."""
    job, counts, unequal = JOBS[name], Counter[str](), list[str]()
    with tempfile.TemporaryDirectory() as place:
        disturbed, calm = Path(place, "disturbed"), Path(place, "calm")
        started = time.monotonic()
        status, touches = in_a_child(job.arguments(calm))
        assert status == 0, f"{name} fails undisturbed"
        seconds, by_time = time.monotonic() - started, False
        while counts["kills"] < kills or not counts["comparisons"]:
            moment = (
                {"seconds": rng.uniform(0, seconds)} if by_time else {"strike_at": rng.randint(1, touches)}
            )
            status, _ = in_a_child(job.arguments(disturbed), **(moment if counts["kills"] < kills else {}))
            assert status in (0, signal.SIGKILL), f"{name} ended by itself with status {status}"
            by_time = not by_time and status != 0
            counts["kills"] += status != 0
            if status == 0:
                counts["comparisons"] += 1
                unequal += unequal_parts(job, disturbed, calm)
                shutil.rmtree(disturbed)
            elif job.makes_files:
                for file in calm.glob("*"):
                    there = disturbed / file.name
                    assert not there.exists() or there.read_bytes() == file.read_bytes(), (
                        f"{there} is not whole"
                    )
    told = ", ".join(f"{number} {what}" for what, number in counts.items())
    print(f"{name}: {told}; differs: {', '.join(unequal) or 'nothing'} ({touches} touches)", flush=True)
    return unequal


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("jobs", nargs="*", choices=[*JOBS, []], help="default: all of them")
    parser.add_argument("--kills", type=int, default=30, help="of each job")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    options = parser.parse_args()
    torch.set_num_threads(1)
    ctypes.CDLL(None).prctl(SUBREAPER, 1, 0, 0, 0)
    for module in (
        "h5py",
        "matplotlib.pyplot",
        "optuna",
        "pyarrow.parquet",
        "tensorboard.compat.proto.event_pb2",
    ):
        import_module(module)  # once here rather than in every child
    resumable_collection.SAVE_EVERY_ROWS = 200
    # a fresh interpreter per worker would take most of the time; a fork serves the same purpose here
    fork = multiprocessing.get_context("fork")
    multiprocessing.get_context = lambda method=None: fork  # type: ignore[assignment]
    found = [
        line
        for job in options.jobs or JOBS
        for line in check(job, options.kills, random.Random(options.seed))
    ]
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
