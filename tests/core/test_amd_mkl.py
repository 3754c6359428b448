"""The opt-in path for AMD processors: taken before torch, recorded, and explained where it is not."""

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from rl_training.core import machine as amd_mkl

SOURCE = Path(__file__).parents[2] / "src"
STATE = (
    "import sys; from rl_training.core import machine\n"
    "from rl_training.core.version import library_versions\n"
    "print(machine.active(), library_versions().get('mkl_path'), 'torch' in sys.modules)\n"
)
possible = pytest.mark.skipif(
    (platform.system(), platform.machine()) != ("Linux", "x86_64") or shutil.which("cc") is None,
    reason="for x86 under Linux, with a C compiler",
)


def run(code: str, cache: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": str(cache), **environment}
    return subprocess.run(
        [sys.executable, "-c", code], env=variables, capture_output=True, text=True, check=True, timeout=60
    )


@pytest.mark.slow
@possible
def test_the_path_is_taken_on_request_recorded_and_kept_for_the_next_process(tmp_path: Path) -> None:
    done = run(f"import rl_training\n{STATE}", tmp_path, RL_TRAINING_AMD_MKL="1")
    assert (done.stdout.split(), done.stderr) == (["True", "amd", "False"], "")
    (library,) = (tmp_path / "rl_training").iterdir()
    # found again where there is no compiler any more
    again = run(f"import rl_training\n{STATE}", tmp_path, RL_TRAINING_AMD_MKL="1", PATH="/nowhere")
    assert again.stdout == done.stdout and library.is_file()


@pytest.mark.slow
@possible
def test_both_questions_of_mkl_are_answered_with_yes(tmp_path: Path) -> None:
    code = (
        "import rl_training, ctypes; everywhere = ctypes.CDLL(None)\n"
        "print(everywhere.mkl_serv_intel_cpu_true(), everywhere.mkl_serv_intel_cpu())"
    )
    assert run(code, tmp_path, RL_TRAINING_AMD_MKL="1").stdout == "1 1\n"


@pytest.mark.slow
@possible
@pytest.mark.parametrize(("candidate", "module"), [("eager", "ours"), ("floor", "floor")])
def test_every_candidate_of_the_throughput_benchmark_takes_it(
    tmp_path: Path, candidate: str, module: str
) -> None:
    spec = {"candidate": candidate, "module": module, "kind": "update", "algo": "bc", "hidden": 8, "batch": 8}
    spec |= {"threads": 1, "cores": sorted(os.sched_getaffinity(0))}
    with subprocess.Popen(
        [sys.executable, str(SOURCE.parent / "benchmarks/speed/throughput/worker.py"), json.dumps(spec)],
        env={**os.environ, "PYTHONPATH": str(SOURCE), "XDG_CACHE_HOME": str(tmp_path), amd_mkl.VARIABLE: "1"},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as worker:
        assert worker.stdout is not None and json.loads(worker.stdout.readline())["count"] > 0  # it has torch
        loaded = Path(f"/proc/{worker.pid}/maps").read_text()
        assert "libtorch_cpu" in loaded and "amd_mkl" in loaded
        worker.communicate()


@pytest.mark.slow
@pytest.mark.parametrize("value", ["", "0"])
def test_nothing_happens_unless_asked(tmp_path: Path, value: str) -> None:
    done = run(
        f"import rl_training, sys\nassert 'rl_training.core.machine' not in sys.modules\n{STATE}",
        tmp_path,
        RL_TRAINING_AMD_MKL=value,
    )
    assert (done.stdout.split(), done.stderr) == (["False", "None", "False"], "")
    assert not (tmp_path / "rl_training").exists()


@pytest.mark.slow
@possible
def test_it_says_why_it_has_no_effect(tmp_path: Path) -> None:
    late = run(
        f"import sys; sys.modules['torch'] = sys\nimport rl_training\n{STATE}",
        tmp_path,
        RL_TRAINING_AMD_MKL="1",
    )
    assert late.stdout.split()[:2] == ["False", "None"]
    assert "RL_TRAINING_AMD_MKL=1 has no effect: torch was imported before rl_training" in late.stderr
    bare = run(f"import rl_training\n{STATE}", tmp_path, RL_TRAINING_AMD_MKL="1", PATH="/nowhere")
    assert bare.stdout.split()[:2] == ["False", "None"]
    assert "has no effect: it needs a C compiler on the PATH (cc, gcc, clang)" in bare.stderr
