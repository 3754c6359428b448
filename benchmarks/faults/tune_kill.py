"""Kill a search with -9 in the middle, call it again, and count its trials.

    python benchmarks/faults/tune_kill.py --workers 2

At the end there must be exactly as many as were asked for, none of them still running, and a best config
that loads.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from killing import descendants

from rl_training.experiment.config import load_config
from rl_training.sweeps.tune import load_tune_config, open_study

SEARCH = """
base: td3_bc/demo
space:
  algo_kwargs.learning_rate: {{low: 1e-5, high: 1e-2, log: true}}
  algo_kwargs.gamma: {{choices: [0.9, 0.98]}}
  total_timesteps: {{choices: [400]}}
  checkpoint_interval: {{choices: [50]}}
  eval_episodes: {{choices: [2]}}
  algo_kwargs.eval_interval: {{choices: [100]}}
  algo_kwargs.dataset_size: {{choices: [2000]}}
  algo_kwargs.hidden_sizes: {{choices: [[32, 32]]}}
  algo_kwargs.compile: {{choices: [false]}}
trials: {trials}
"""
TIMEOUT_SECONDS = 600.0


def states(folder: Path) -> dict[str, int]:
    if not (folder / "study.db").is_file():
        return {}
    names = [t.state.name for t in open_study(folder, load_tune_config(folder.parent / "search.yaml")).trials]
    return {name: names.count(name) for name in sorted(set(names))}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--after", type=int, default=8, help="trials that end before the kill")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file, out = Path(folder, "search.yaml"), Path(folder, "out")
        file.write_text(SEARCH.format(trials=options.trials))
        words = [sys.executable, "-m", "rl_training", "tune", str(file), "-o", str(out)]
        words += ["--workers", str(options.workers)]
        search, deadline = subprocess.Popen(words), time.monotonic() + TIMEOUT_SECONDS
        while (found := states(out)).get("COMPLETE", 0) + found.get("PRUNED", 0) < options.after:
            if search.poll() is not None or time.monotonic() > deadline:
                raise SystemExit(f"the search ended or stood still before the kill: {found}")
            time.sleep(1.0)
        for victim in [search.pid, *descendants(search.pid)]:
            os.kill(victim, signal.SIGKILL)
        search.wait()
        print(f"killed with {states(out)}", flush=True)
        subprocess.run(words, check=True)
        found = states(out)
        best = load_config(out / "best.yaml").algo_kwargs["learning_rate"]
    print(f"{sum(found.values())} trials: {found}; best learning rate {best:.2g}")
    return 0 if sum(found.values()) == options.trials and "RUNNING" not in found else 1


if __name__ == "__main__":
    sys.exit(main())
