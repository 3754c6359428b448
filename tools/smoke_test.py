"""Build the sdist and the wheel, install the wheel into an empty environment, and use it as a stranger would.

    python3 tools/smoke_test.py [--dist DIR] [--python PYTHON]

Only the standard library is needed here. The wheel is built from the sdist, so both are complete or neither
passes. Everything happens in a temporary directory, far from the checkout; `--dist` keeps what was built.
Exit code 1 if a step fails.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NOT_SOURCE = shutil.ignore_patterns(".git", ".venv", ".*_cache", ".hypothesis", "__pycache__", "*.egg-info")
AT_THE_TOP = {"build", "dist", "site", "runs"}
"""What is made beside the sources; the package has a room `runs` of its own."""
TINY_RUN = (
    *("total_timesteps=50", "eval_episodes=1", "algo_kwargs.dataset_size=400", "algo_kwargs.batch_size=32"),
    "algo_kwargs.hidden_sizes=[16, 16]",
)


WRITE_LOG = "from rl_training.demo.plant import write_log; write_log('log.csv', runs=3, seed=0)"


class Failed(Exception):
    """A step that did not work; the message holds what it printed."""


def step(name: str, *command: str | Path, cwd: Path) -> str:
    """Run one command away from the checkout and return its standard output."""
    start = time.monotonic()
    ours = ("PYTHONPATH", "VIRTUAL_ENV")
    variables = {name: value for name, value in os.environ.items() if name not in ours}
    done = subprocess.run(
        list(map(str, command)), cwd=cwd, env=variables, capture_output=True, text=True, check=False
    )
    print(f"{name}: {time.monotonic() - start:.1f} s", flush=True)
    if done.returncode:
        raise Failed(f"{name} failed with code {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def environment(python: str, folder: Path) -> Path:
    """The interpreter of a new environment with pip in it."""
    step(f"environment {folder.name}", python, ROOT / "tools" / "create_venv.py", folder, cwd=folder.parent)
    return folder / "bin" / "python"


def build(python: str, work: Path) -> tuple[Path, Path, Path]:
    """The sdist, the wheel made from it, and that of the runtime; building leaves files behind in a copy."""
    source, dist = work / "source", work / "dist"
    shutil.copytree(
        ROOT,
        source,
        symlinks=True,
        ignore=lambda folder, names: (
            NOT_SOURCE(folder, names) | (AT_THE_TOP & {*names} if Path(folder) == ROOT else set())
        ),
    )
    builder = environment(python, work / "builder")
    step("install build", builder, "-m", "pip", "install", "--quiet", "build", cwd=work)
    step("build", builder, "-m", "build", "--outdir", dist, source, cwd=work)
    (sdist,), (wheel,) = dist.glob("*.tar.gz"), dist.glob("*.whl")
    return sdist, wheel, build_runtime(source, builder, dist, work)


def build_runtime(source: Path, builder: Path, dist: Path, work: Path) -> Path:
    """The wheel for machines that serve a policy: the same sources, the few dependencies of the runtime."""
    project = source / "pyproject.toml"
    text = project.read_text(encoding="utf-8")
    runtime = tomllib.loads(text)["tool"]["rl_training"]["runtime"]
    needed = text[text.index("dependencies = [") : text.index("]\n\n[project.optional-dependencies]") + 1]
    listed = ", ".join(f'"{each}"' for each in runtime["dependencies"])
    text = text.replace(needed, f"dependencies = [{listed}]")
    project.write_text(text.replace('name = "rl-training"', f'name = "{runtime["name"]}"'), encoding="utf-8")
    step("build runtime", builder, "-m", "build", "--wheel", "--outdir", dist, source, cwd=work)
    (wheel,) = dist.glob("rl_training_runtime-*.whl")
    return wheel


SERVE = """
import importlib.util, sys
from pathlib import Path
assert importlib.util.find_spec("torch") is None, "torch is installed"
from rl_training.serve.app import Service
told = Service.of(Path(sys.argv[1]), None, "act", None, 60.0).act({"obs_0": 1.0, "obs_1": 0.0, "obs_2": 0.0})
print(told["action"]["action_0"])
"""


def serve(python: str, wheel: Path, policy: Path, work: Path) -> None:
    """Install the runtime alone, and ask it for an action."""
    installed = environment(python, work / "runtime")
    constraints, pip = ROOT / "constraints.txt", ("-m", "pip", "install", "--quiet")
    step("install runtime", installed, *pip, "-c", constraints, wheel, cwd=work)
    told = step("serve", installed, "-c", SERVE, policy, cwd=work)
    expect(abs(float(told)) <= 2.0, f"an action within [-2, 2] was expected, got {told}")
    command = installed.parent / "rl-training"
    expect("--decisions" in step("serve --help", command, "serve", "--help", cwd=work), "serve has no help")


def use(python: str, wheel: Path, work: Path) -> Path:
    """Install the wheel with the pinned versions, train, predict, and export; returns the exported policy."""
    installed = environment(python, work / "installed")
    constraints = ROOT / "constraints.txt"
    wanted = f"{wheel}[parquet]"
    step("install wheel", installed, "-m", "pip", "install", "--quiet", "-c", constraints, wanted, cwd=work)
    command, empty = installed.parent / "rl-training", work / "empty"
    empty.mkdir()
    expect("train" in step("--help", command, "--help", cwd=empty), "--help names no train")
    expect("iql/pendulum" in step("configs", command, "configs", cwd=empty), "packaged configs are missing")
    overrides = [part for each in TINY_RUN for part in ("--set", each)]
    trained = step("train", command, "train", "--config", "iql/pendulum", *overrides, "--quiet", cwd=empty)
    run_dir = trained.strip().splitlines()[-1]
    action = step("predict", command, "predict", "--checkpoint", run_dir, "--obs", "1 0 0", cwd=empty)
    expect(len(json.loads(action)) == 1, f"one action was expected, got {action}")
    step("log", installed, "-c", WRITE_LOG, cwd=empty)
    told = step("data inspect", command, "data", "inspect", "log.csv", cwd=empty)
    expect("--obs T_tank,level,outflow" in told, f"no mapping was proposed: {told}")
    places = step("where", installed, "-c", "import rl_training; print(rl_training.__file__)", cwd=empty)
    expect(str(work) in places, f"another rl_training was used: {places}")
    policy = empty / "policy.safetensors"
    step("export", command, "export", "--checkpoint", run_dir, "--out", policy, cwd=empty)
    return policy


def expect(fact: bool, problem: str) -> None:
    if not fact:
        raise Failed(problem)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dist", type=Path, help="also keep sdist and wheel in this directory")
    parser.add_argument("--python", default=sys.executable, help="interpreter to test with")
    parser.add_argument("--build-only", action="store_true", help="stop when sdist and wheel are built")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        try:
            files = build(options.python, Path(name))
            for file in files:
                print(f"{file.name}: {file.stat().st_size:,} bytes")
                if options.dist:
                    options.dist.mkdir(parents=True, exist_ok=True)
                    shutil.copy(file, options.dist)
            if not options.build_only:
                policy = use(options.python, files[1], Path(name))
                serve(options.python, files[2], policy, Path(name))
        except Failed as problem:
            print(f"error: {problem}", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
