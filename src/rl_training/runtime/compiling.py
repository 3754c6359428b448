"""Whether a run's updates are compiled."""

from __future__ import annotations

import os
import shutil
import sysconfig
import warnings
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from rl_training.algorithms.learner import Learner

WORTHWHILE_UPDATES = 20_000
"""Compiling costs 13 to 26 s from an empty cache. IQL at 256 x 256 has gained that back after 6,400 updates,
BC, the smallest of all, after 25,000 (benchmarks/compile_time.py)."""


def apply_compile(
    learner: Learner, setting: bool | Literal["auto"], updates_left: int, stored: bool | None
) -> bool:
    """Compile the learner where wanted; a resumed run keeps its mode, as results differ in rounding."""
    wanted = updates_left >= WORTHWHILE_UPDATES if setting == "auto" else setting
    if stored is not None:
        wanted = stored
    lacking = missing_for_compiling(learner.device.type) if wanted else None
    if lacking is not None:
        warnings.warn(f"{lacking}: updates run uncompiled, and slower", stacklevel=2)
        return False
    if wanted:
        learner.compile()
    return wanted


def missing_for_compiling(device_type: str) -> str | None:
    """What torch.compile lacks on this machine, in words; none if it can run."""
    if device_type == "cpu":
        if not has_compiler():
            return "no C++ compiler was found"
        if not Path(sysconfig.get_path("include"), "Python.h").is_file():
            return "the header files of Python were not found"
        return None
    if device_type == "cuda":
        return None if find_spec("triton") else "the package triton was not found"
    return f"updates cannot be compiled for {device_type} devices"


def has_compiler() -> bool:
    """The C++ compiler named by CXX, or a usual one."""
    names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
    return any(shutil.which(name) for name in names)
