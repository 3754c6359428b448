"""CORL, JAX-CORL and FQL are collections of scripts, not packages: they are measured from a checkout.

A script imports, beside what an update needs, what loads its data and logs its runs (d4rl, gym, wandb, …).
Those modules get a dummy in their place: nothing of them is called by an update.
"""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from unittest.mock import MagicMock

CHECKOUTS = {
    "corl": "--corl",
    "corl-jax": "--corl",
    "jax-corl": "--jax-corl",
    "jax-corl-shipped": "--jax-corl",
    "fql-authors": "--fql",
}
"""Candidate -> the option that says where it lies."""

UNUSED = ("d4rl", "gym", "pyrallis", "wandb", "tqdm", "tqdm.auto", "omegaconf")


def load_script(checkout: str, file: str) -> ModuleType:
    """A script of a checkout as a module, without running its training."""
    path = Path(checkout) / file
    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist: is {checkout} the right checkout?")
    for name in UNUSED:
        sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None))
    sys.modules["omegaconf"].OmegaConf.from_cli = dict  # type: ignore[attr-defined]
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
