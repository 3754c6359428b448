"""The version of the package, written once."""

import platform
from functools import cache
from importlib.metadata import PackageNotFoundError, version

VERSION = "0.2.0"


def library_versions() -> dict[str, str]:
    """The versions that a result depends on, read without importing the libraries.

    `mkl_path` is there only where the products were taken another way than usual, which changes rounding.
    """
    packages = {name: installed_version(name) for name in ("torch", "numpy", "gymnasium")}
    from rl_training.core import machine

    path = {"mkl_path": "amd"} if machine.active() else {}
    return {"python": platform.python_version(), "rl_training": VERSION, **packages, **path}


@cache
def installed_version(package: str) -> str:
    """Read once per process: every checkpoint asks, and each answer parses a long file."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
