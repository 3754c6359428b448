"""Kill a training run again and again, resume it each time, and compare it with an undisturbed one.

    python benchmarks/faults/kill_resume.py --kills 50
    python benchmarks/faults/kill_resume.py --kills 5 --config lion/pendulum --set algo_kwargs.model_updates=1

After every kill -9 the newest checkpoint must load, hold the replay rows and be no older than before; the
process that resumes from it must get further. At the end the run is resumed to a fixed total, and its learner
must equal, bit for bit, the learner of the same run without any kill.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from killing import differences

from rl_training.algorithms.recipe import get_recipe
from rl_training.core.checkpoints import list_checkpoints, load_checkpoint, newest_checkpoint
from rl_training.runs.tracking import read_metrics

# Tiny networks and a checkpoint every few updates: most of the time is spent around the moment of saving.
SETTINGS = {
    "checkpoint_interval": 4,
    "log_interval": 20,
    "eval_episodes": 1,
    "num_envs": 2,
    "algo_kwargs.hidden_sizes": "[16,16]",
    "algo_kwargs.batch_size": 16,
    "algo_kwargs.eval_interval": 0,
    "algo_kwargs.compile": "false",
}
ONLINE = {"algo_kwargs.learning_starts": 20}
OFFLINE = {"algo_kwargs.dataset_size": 400, "algo_kwargs.judge_at_end": "false"}
FAR_AWAY = 10_000_000
START_SECONDS = 5.0
TIMEOUT_SECONDS = 120.0


def command(*words: str) -> list[str]:
    return [sys.executable, "-m", "rl_training", *words, "--quiet"]


def train_command(config: str, output_dir: Path, total_timesteps: int, given: Sequence[str]) -> list[str]:
    kind = ONLINE if collects(config) else OFFLINE
    settings = SETTINGS | kind | {"total_timesteps": total_timesteps, "output_dir": output_dir}
    settings |= dict(each.split("=", 1) for each in given)
    return command("train", "--config", config, *(f"--set={key}={value}" for key, value in settings.items()))


def collects(config: str) -> bool:
    return get_recipe(config.split("/")[0]).online


def run_directory(output_dir: Path) -> Path | None:
    """The run that has saved something; an earlier one that was killed before that is started again."""
    return next((run for run in sorted(output_dir.glob("*")) if newest_checkpoint(run)), None)


def step_of(path: Path | None) -> int:
    return 0 if path is None else int(path.stem.removeprefix("step_"))


def newest_step(output_dir: Path) -> int:
    run_dir = run_directory(output_dir)
    return 0 if run_dir is None else step_of(newest_checkpoint(run_dir))


def kill_once(config: str, output_dir: Path, rng: random.Random, given: Sequence[str]) -> str:
    """Start or resume the run and kill it: while it starts, at any time, or in the middle of a save."""
    run_dir = run_directory(output_dir)
    before = newest_step(output_dir)
    words = train_command(config, output_dir, FAR_AWAY, given)
    if run_dir is not None:
        words = command("resume", "--checkpoint", str(run_dir))
    with tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            moment = rng.choice(
                ["while starting", "at any time", "at any time", "during a save", "during a save"]
            )
            if moment == "while starting":
                time.sleep(rng.uniform(0.0, START_SECONDS))
            else:
                wait_until_further(process, output_dir, before)
                time.sleep(rng.uniform(0.0, 1.0))
            if moment == "during a save":
                wait_until_saving(process, output_dir)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()
        if process.returncode != -signal.SIGKILL:
            errors.seek(0)
            raise SystemExit(f"the run ended by itself: {errors.read().decode()}")
    return moment


def wait_until_further(process: subprocess.Popen[bytes], output_dir: Path, before: int) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while newest_step(output_dir) <= before and process.poll() is None:
        if time.monotonic() > deadline:
            raise SystemExit(f"no checkpoint after step {before} within {TIMEOUT_SECONDS:.0f} s")
        time.sleep(0.005)


def wait_until_saving(process: subprocess.Popen[bytes], output_dir: Path) -> None:
    run_dir = run_directory(output_dir)
    assert run_dir is not None
    while not unfinished_saves(run_dir) and process.poll() is None:
        pass


def unfinished_saves(run_dir: Path) -> bool:
    return any(name.endswith(".tmp") for name in os.listdir(run_dir / "checkpoints"))


def check(output_dir: Path, before: int, *, replay: bool) -> str:
    """What a kill left behind; raises if anything that was saved is lost."""
    run_dir = run_directory(output_dir)
    if run_dir is None:
        return "no checkpoint yet, the run starts again"
    checkpoints = list_checkpoints(run_dir)
    state = load_checkpoint(run_dir)
    step = state["counters"]["global_step"]
    assert step == step_of(checkpoints[-1]) >= before, (step, checkpoints, before)
    assert ("replay" in state) is replay, "the newest checkpoint resumes exactly"
    for older in checkpoints[:-1]:
        load_checkpoint(older)
    assert all(isinstance(row["step"], int) for row in read_metrics(run_dir))
    loaded = "newest checkpoint loaded"
    return f"{loaded}, a save was cut off" if unfinished_saves(run_dir) else loaded


def finish(words: list[str]) -> None:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(words)} exited with {done.returncode}: {done.stderr}")


def compare_with_undisturbed(
    config: str, disturbed: Path, undisturbed: Path, given: Sequence[str]
) -> list[str]:
    """Let the killed run finish, do it again in one go, and name what differs between the two learners."""
    run_dir = run_directory(disturbed)
    if run_dir is None:
        raise SystemExit("no checkpoint was ever saved; give more --kills")
    total = newest_step(disturbed) + 100
    finish(command("resume", "--checkpoint", str(run_dir), "--total-timesteps", str(total)))
    finish(train_command(config, undisturbed, total, given))
    assert newest_step(disturbed) == newest_step(undisturbed) == total
    reference = run_directory(undisturbed)
    assert reference is not None
    print(f"both runs finished at step {total}")
    return differences(load_checkpoint(run_dir)["learner"], load_checkpoint(reference)["learner"])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--config", default="sac/pendulum")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    parser.add_argument("--set", dest="given", action="append", default=[], metavar="NAME=VALUE")
    options = parser.parse_args()
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rng = random.Random(options.seed)
    counts: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        disturbed, undisturbed = Path(folder, "disturbed"), Path(folder, "undisturbed")
        for number in range(1, options.kills + 1):
            before = newest_step(disturbed)
            moment = kill_once(options.config, disturbed, rng, options.given)
            outcome = check(disturbed, before, replay=collects(options.config))
            counts.update(["killed " + moment, outcome])
            print(f"kill {number:3d}: step {before:6d} -> {newest_step(disturbed):6d}  {outcome}", flush=True)
        unequal = compare_with_undisturbed(options.config, disturbed, undisturbed, options.given)
    for name, count in sorted(counts.items()):
        print(f"{count:4d}  {name}")
    print(f"values of the learner that differ from the undisturbed run: {', '.join(unequal) or 'none'}")
    return 1 if unequal else 0


if __name__ == "__main__":
    sys.exit(main())
