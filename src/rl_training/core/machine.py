"""How computations use the machine: device, threads, freed memory."""

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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.core.errors import ConfigError

if TYPE_CHECKING:
    import torch


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is any."""
    import torch

    if name == "auto":
        name = "cuda" if torch.cuda.is_available() else "cpu"
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise ConfigError(f"device must be one that this machine has, got {name!r}: {reason}") from None
    return device


# How many threads a computation takes.


@contextmanager
def one_thread() -> Iterator[None]:
    """For many small products: threads that wait for each other cost more than they bring.

    A sum over threads also rounds by their number, and the same question must have the same answer.
    """
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# How the process treats freed memory while it trains.


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 30
LARGEST_KEPT_BLOCK = 1 << 28


def keep_freed_memory() -> bool:
    """Let the C library reuse the memory of one update for the next one.

    glibc returns large freed blocks to the system, and every update pays for getting the same pages back:
    a quarter of a compiled CQL update, a tenth of an eager SAC update. Whoever has set one of these limits
    by its environment variable keeps the last word; elsewhere than on glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return False
    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK))


# Opt-in for AMD processors: the mathematics library behind torch (MKL) takes the code it has for Intel's.


VARIABLE = "RL_TRAINING_AMD_MKL"
SOURCE = "int mkl_serv_intel_cpu_true(void) { return 1; }\nint mkl_serv_intel_cpu(void) { return 1; }\n"
COMPILERS = ("cc", "gcc", "clang")

_loaded: list[ctypes.CDLL] = []


class NotPossible(RuntimeError):
    """Why the other path cannot be taken, and what would help."""


def active() -> bool:
    """Whether this process took the path before torch was imported."""
    return bool(_loaded)


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
