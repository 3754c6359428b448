"""Freed memory is kept for the next update; see also the growth test in test_compile."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys

import pytest

needs_mallopt = pytest.mark.skipif(
    not (sys.platform.startswith("linux") and hasattr(ctypes.CDLL(None), "mallopt")), reason="speaks of glibc"
)

CHURN = """
import resource, sys, torch
from rl_training.core.machine import keep_freed_memory

torch.set_num_threads(1)
print(keep_freed_memory() if sys.argv[1] == "kept" else False)

def churn():
    for _ in range(20):
        blocks = [torch.ones(1 << 20) for _ in range(12)]  # 48 MiB at once
        del blocks

churn()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
churn()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def run_churn(mode: str, **environment: str) -> tuple[str, int]:
    plain = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    done = subprocess.run(
        [sys.executable, "-c", CHURN, mode],
        capture_output=True,
        text=True,
        check=True,
        env={**plain, **environment},
    )
    applied, faults = done.stdout.split()
    return applied, int(faults)


@pytest.mark.slow
@needs_mallopt
def test_pages_of_one_update_serve_the_next() -> None:
    applied, kept = run_churn("kept")
    assert applied == "True"
    # Left alone, glibc returns them or not, as the heap happens to lie; with a low limit it always does.
    _, returned = run_churn("returned", MALLOC_MMAP_THRESHOLD_="131072")
    assert kept < 0.1 * returned  # 20 rounds of 48 MiB fetch some 240,000 pages anew


@pytest.mark.slow
@needs_mallopt
def test_a_users_own_setting_has_the_last_word() -> None:
    assert run_churn("kept", MALLOC_TRIM_THRESHOLD_="131072")[0] == "False"
