"""Kill a sweep twice with -9, let it finish, and compare it with an undisturbed one.

    python benchmarks/faults/sweep_kill.py --workers 2
    python benchmarks/faults/sweep_kill.py --stack true
    python benchmarks/faults/sweep_kill.py --backend ray --kills 0

Three algorithms with three seeds each on Pendulum. The first kill hits the sweep alone, so that its workers
notice; the second hits the sweep and all its workers. At the end all runs must be complete, and their
learners equal, bit for bit, those of the same sweep without any kill.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from killing import descendants, differences

from rl_training.core.checkpoints import load_checkpoint, newest_checkpoint
from rl_training.sweeps.plan import run_status

SWEEP = """
base: sac/pendulum
variants: [{variants}]
grid:
  total_timesteps: [{steps}]
  checkpoint_interval: [50]
  log_interval: [100]
  eval_episodes: [2]
  algo_kwargs.compile: [false]
  algo_kwargs.batch_size: [64]
  algo_kwargs.eval_interval: [250]
seeds: {seeds}
stack: {stack}
"""
VARIANTS = {
    "sac": "{name: sac, base: sac/pendulum, algo_kwargs.learning_starts: 100}",
    "td3_bc": "{name: td3_bc, base: td3_bc/demo}",
    "iql": "{name: iql, base: iql/pendulum}",
}
TIMEOUT_SECONDS = 600.0


def sweep_command(file: Path, output_dir: Path, options: argparse.Namespace, backend: str) -> list[str]:
    words = [sys.executable, "-m", "rl_training", "sweep", str(file), "--output-dir", str(output_dir)]
    return [*words, "--workers", str(options.workers), "--backend", backend]


def run_directories(output_dir: Path) -> list[Path]:
    return sorted(file.parent for file in output_dir.glob("*/*/config.yaml"))


def progress(output_dir: Path) -> int:
    """Checkpointed steps of all runs together."""
    newest = [newest_checkpoint(run_dir) for run_dir in run_directories(output_dir)]
    return sum(int(path.stem.removeprefix("step_")) for path in newest if path is not None)


def kill_once(words: list[str], output_dir: Path, further: int, *, workers_too: bool) -> str:
    """Start the sweep, wait until it is `further` steps on, and kill it."""
    start, deadline = progress(output_dir), time.monotonic() + TIMEOUT_SECONDS
    sweep = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while progress(output_dir) < start + further and sweep.poll() is None:
        if time.monotonic() > deadline:
            raise SystemExit("the sweep makes no progress")
        time.sleep(0.05)
    if sweep.poll() is not None:
        raise SystemExit(f"the sweep ended with {sweep.returncode} before it was killed; raise --steps")
    victims = [sweep.pid, *(descendants(sweep.pid) if workers_too else [])]
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    sweep.wait()
    states = [run_status(run_dir).state for run_dir in run_directories(output_dir)]
    counts = ", ".join(f"{states.count(state)} {state}" for state in sorted(set(states)))
    return f"killed {len(victims)} processes at {progress(output_dir)} steps in all: {counts}"


def compare(left: Path, right: Path, runs: int) -> list[str]:
    """Runs, named by their directories, that are missing, incomplete or unequal."""
    names = sorted({path.relative_to(root) for root in (left, right) for path in run_directories(root)})
    bad = []
    for name in names:
        if any(run_status(root / name).state != "done" for root in (left, right)):
            bad.append(f"{name} is not complete")
            continue
        ours, theirs = load_checkpoint(left / name), load_checkpoint(right / name)
        unequal = differences(ours["learner"], theirs["learner"])
        returns = [run_status(root / name).eval_return for root in (left, right)]
        updates = ours["counters"]["gradient_steps"]
        print(
            f"{name}: {updates} updates, {len(unequal)} values differ, returns {returns[0]} and {returns[1]}"
        )
        if not updates:
            bad.append(f"{name} has learned nothing, so its equality means nothing")
        if unequal or returns[0] != returns[1]:
            bad.append(f"{name} differs")
    return bad if len(names) == runs else [*bad, f"there are {len(names)} runs, not {runs}"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--algo", nargs="+", choices=VARIANTS, default=list(VARIANTS))
    parser.add_argument("--seeds", type=int, default=3, help="of each algorithm")
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--stack", choices=["auto", "true", "false"], default="false")
    parser.add_argument("--kills", type=int, default=2)
    parser.add_argument("--backend", choices=["local", "ray"], default="local", help="of the second sweep")
    parser.add_argument("--seed", type=int, default=0, help="seed of the moments of the kills")
    options = parser.parse_args()
    rng, runs = random.Random(options.seed), len(options.algo) * options.seeds
    with tempfile.TemporaryDirectory() as folder:
        file, root = Path(folder, "sweep.yaml"), Path(folder)
        variants = ", ".join(VARIANTS[algo] for algo in options.algo)
        file.write_text(
            SWEEP.format(
                variants=variants, steps=options.steps, seeds=list(range(options.seeds)), stack=options.stack
            )
        )
        subprocess.run(sweep_command(file, root / "calm", options, "local"), check=True)
        words = sweep_command(file, root / "disturbed", options, options.backend)
        for number in range(options.kills):
            further = rng.randint(options.steps, 2 * options.steps)
            print(kill_once(words, root / "disturbed", further, workers_too=number % 2 == 1), flush=True)
        subprocess.run(words, check=True)
        bad = compare(root / "calm", root / "disturbed", runs)
    print("; ".join(bad) or f"{runs} complete runs, all equal bit for bit")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
