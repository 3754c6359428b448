"""The command line: `rl-training ...`, also `python -m rl_training ...`."""

from rl_training.cli.app import entry_point, main

__all__ = ["entry_point", "main"]
