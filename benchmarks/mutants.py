"""Do the runtime's tests notice when the runtime is wrong? Plants faults, one at a time, and runs the tests.

    python benchmarks/mutants.py            all faults
    python benchmarks/mutants.py patience   those whose description holds a word

Every fault is applied to a copy of `src`; the tests of the runtime run against the copy. A fault that they
do not notice survives, and makes the exit code 1.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from runtime_faults import FAULTS, Fault

ROOT = Path(__file__).parents[1]
TESTS = ("schedules", "stopping", "collection", "evaluation", "callbacks", "settings")
"""`tests/test_runtime_<name>.py`"""


def notices(fault: Fault | None) -> bool:
    """Whether the tests fail on a copy of the sources with this fault."""
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if fault is not None:
            fault.apply(source)
        order = sorted(TESTS, key=lambda name: fault is not None and name != fault.first)
        files = [f"tests/test_runtime_{name}.py" for name in order]
        # The project's own `pythonpath` would put the sound sources first.
        options = ["-x", "-q", "-p", "no:cacheprovider", "-o", f"pythonpath={source}"]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", *options, *files],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (0, 1):
        sys.exit(f"the tests could not run:\n{done.stdout}{done.stderr}")
    return done.returncode == 1


def main(words: list[str]) -> int:
    chosen = [fault for fault in FAULTS if all(word in fault.breaks for word in words)]
    if not words and notices(None):
        sys.exit("the tests fail without any fault: mend that first")
    survived = 0
    for fault in chosen:
        started = time.perf_counter()
        killed = notices(fault)
        survived += not killed
        verdict = "killed" if killed else "SURVIVED"
        print(
            f"{verdict:8}  {time.perf_counter() - started:5.1f} s  {fault.breaks}  ({fault.file})", flush=True
        )
    print(f"{len(chosen) - survived} of {len(chosen)} faults killed")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
