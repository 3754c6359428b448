"""The version of the package, written once."""

import platform
from importlib.metadata import PackageNotFoundError, version

VERSION = "0.1.0"


def library_versions() -> dict[str, str]:
    """The versions that a result depends on, read without importing the libraries."""
    versions = {"python": platform.python_version(), "rl_training": VERSION}
    for package in ("torch", "numpy", "gymnasium"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "not installed"
    return versions
