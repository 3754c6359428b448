"""Entry of a worker process: `python worker.py '<Spec as JSON>'`."""

from __future__ import annotations

import importlib
import json
import os
import sys

from protocol import Spec, keep_stdout_clean

import rl_training  # noqa: F401  (before torch: RL_TRAINING_AMD_MKL=1 then holds for every candidate)


def main() -> None:
    values = json.loads(sys.argv[1])
    spec = Spec(**{**values, "cores": tuple(values["cores"])})
    os.sched_setaffinity(0, spec.cores)  # before any library counts the processors
    keep_stdout_clean()
    kinds = importlib.import_module(spec.module).KINDS
    kinds[spec.kind](spec)


if __name__ == "__main__":
    main()
