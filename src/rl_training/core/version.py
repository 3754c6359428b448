"""The version of the package, written once."""

import platform
from importlib.metadata import PackageNotFoundError, version

from rl_training.core import amd_mkl

VERSION = "0.1.0"


def library_versions() -> dict[str, str]:
    """The versions that a result depends on, read without importing the libraries.

    `mkl_path` is there only where the products were taken another way than usual, which changes rounding.
    """
    versions = {"python": platform.python_version(), "rl_training": VERSION}
    for package in ("torch", "numpy", "gymnasium"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions | ({"mkl_path": "amd"} if amd_mkl.active() else {})
