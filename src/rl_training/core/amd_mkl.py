"""Opt-in for AMD processors: the mathematics library behind torch (MKL) takes the code it has for Intel's.

MKL asks a function of its own whether the processor is Intel's and takes slower code where it is not. A
library that is loaded before torch and defines that function first answers "yes". The code it then takes is
chosen by what the processor says it can do; sums are taken in another order, so results differ in rounding.

    RL_TRAINING_AMD_MKL=1 rl-training train …

The library is two functions of C, compiled on first use into the user's cache directory.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

VARIABLE = "RL_TRAINING_AMD_MKL"
SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\nint mkl_serv_intel_cpu(void) { return 1; }\n"
COMPILERS = ("cc", "gcc", "clang")

_loaded: list[ctypes.CDLL] = []


class NotPossible(RuntimeError):
    """Why the other path cannot be taken, and what would help."""


def active() -> bool:
    """Whether this process took the path before torch was imported."""
    return bool(_loaded)


def would_help(processor: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether runs without the path are much slower here: AMD's processors with AVX-512, half as fast.

    Without AVX-512 the gain is some 10 % (docs/performance.md), too little to speak of unasked.
    """
    try:
        told = processor.read_text()
    except OSError:
        return False
    return not active() and "AuthenticAMD" in told and "avx512f" in told.split()


def enable() -> bool:
    """Take the path; where that is not possible, say why and go on without. Returns whether it is taken."""
    if active():
        return True
    try:
        if "torch" in sys.modules:
            raise NotPossible("torch was imported before rl_training; import rl_training first")
        _loaded.append(ctypes.CDLL(str(library_path()), mode=ctypes.RTLD_GLOBAL))
    except (NotPossible, OSError) as problem:
        warnings.warn(f"{VARIABLE}=1 has no effect: {problem}", RuntimeWarning, stacklevel=2)
    return active()


def library_path() -> Path:
    """The compiled library, from the cache where it is there already."""
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        raise NotPossible("it is for 64-bit x86 processors under Linux only")
    key = hashlib.sha256(SOURCE.encode()).hexdigest()[:16]
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rl_training"
    path = folder / f"amd_mkl_{key}.so"
    if not path.is_file():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        _compile(path)
    return path


def _compile(path: Path) -> None:
    """Into a directory of its own, then moved: processes that start together each see a whole file."""
    compiler = next((found for name in COMPILERS if (found := shutil.which(name))), None)
    if compiler is None:
        raise NotPossible(
            f"it needs a C compiler on the PATH ({', '.join(COMPILERS)}): install one, e.g. gcc"
        )
    with tempfile.TemporaryDirectory(dir=path.parent) as name:
        source, target = Path(name, "amd_mkl.c"), Path(name, "amd_mkl.so")
        source.write_text(SOURCE)
        command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(target), str(source)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise NotPossible(f"{compiler} failed: {' '.join(done.stderr.split())[-300:]}")
        target.replace(path)
