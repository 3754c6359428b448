"""A sweep on a Ray cluster of several nodes on this machine: a node dies, then the head.

    python benchmarks/faults/ray_faults.py

Three algorithms with three seeds each. First an undisturbed sweep without Ray. Then the same on a cluster of
a head and two nodes: in the middle one node is killed, and Ray places its runs on the other one, where they
go on from their checkpoints. In a third, head and nodes are killed in the middle, a new cluster is started
and the sweep is called again. All runs must equal, bit for bit, those of the undisturbed sweep.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from sweep_kill import compare, progress

if TYPE_CHECKING:  # --help works without ray
    from ray.cluster_utils import Cluster

SWEEP = """
base: td3_bc/demo
variants:
  - {{name: td3_bc, base: td3_bc/demo}}
  - {{name: iql, base: iql/pendulum}}
  - {{name: bc, base: bc/pendulum}}
grid:
  total_timesteps: [{steps}]
  checkpoint_interval: [50]
  log_interval: [100]
  eval_episodes: [1]
  algo_kwargs.compile: [false]
  algo_kwargs.batch_size: [64]
  algo_kwargs.dataset_size: [2000]
  algo_kwargs.eval_interval: [0]
seeds: [0, 1, 2]
stack: false
retries: 4
"""
RUNS = 9
TIMEOUT_SECONDS = 600.0


def start_cluster() -> Cluster:
    """A head that takes no work, and two nodes with room for one run each."""
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(2):
        cluster.add_node(num_cpus=1)
    cluster.wait_for_nodes()
    return cluster


def sweep(file: Path, output_dir: Path, *options: str) -> subprocess.Popen[bytes]:
    words = [
        sys.executable,
        "-m",
        "rl_training",
        "sweep",
        str(file),
        "--output-dir",
        str(output_dir),
        "--quiet",
    ]
    return subprocess.Popen([*words, *options])


def wait_until(output_dir: Path, steps: int, process: subprocess.Popen[bytes]) -> None:
    """Until the runs have made so many steps together."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while progress(output_dir) < steps:
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"the sweep ended or stood still at {progress(output_dir)} steps")
        time.sleep(0.1)


def lose_a_node(file: Path, output_dir: Path, steps: int) -> None:
    cluster = start_cluster()
    process = sweep(file, output_dir, "--backend", "ray", "--address", cluster.address)
    wait_until(output_dir, steps, process)
    print(f"node killed at {progress(output_dir)} steps", flush=True)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    if process.wait() != 0:
        raise SystemExit(f"the sweep ended with {process.returncode} after it lost a node")
    cluster.shutdown()


def lose_the_head(file: Path, output_dir: Path, steps: int) -> None:
    cluster = start_cluster()
    process = sweep(file, output_dir, "--backend", "ray", "--address", cluster.address)
    wait_until(output_dir, steps, process)
    print(f"head and nodes killed at {progress(output_dir)} steps", flush=True)
    cluster.shutdown()
    process.kill()
    process.wait()
    cluster = start_cluster()
    if sweep(file, output_dir, "--backend", "ray", "--address", cluster.address).wait() != 0:
        raise SystemExit("the sweep did not go on with a new head")
    cluster.shutdown()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=600)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root, file = Path(folder), Path(folder, "sweep.yaml")
        file.write_text(SWEEP.format(steps=options.steps))
        if sweep(file, root / "calm", "--workers", "2").wait() != 0:
            raise SystemExit("the sweep fails undisturbed")
        bad = []
        for name, disturb in (("node", lose_a_node), ("head", lose_the_head)):
            disturb(file, root / name, 3 * options.steps)
            bad += compare(root / "calm", root / name, RUNS)
    print("; ".join(bad) or "a node killed, the head restarted: all runs equal bit for bit")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
