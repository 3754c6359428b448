"""Scores of CORL's own scripts, as they are, on the files and with the protocol of `offline_scores.py`.

    python benchmarks/scores/offline_corl.py --corl CORL --data DIR/hopper-medium-replay-v0.hdf5 \
        --reference=17.92,4088.71 --algo corl-td3_bc:50000 --algo corl-iql:50000 --algo corl-rebrac:50000

CORL is a checkout of github.com/corl-team/CORL; settings are those of its `configs/offline` for D4RL's data
of the file's name. `finetune_corl.py` says what the scripts find under the names gym, d4rl, pyrallis, wandb
and tqdm. `corl-iql-as-ours` has the two settings in which ours differs from its file. `corl-rebrac` needs
jax, flax, optax, chex and distrax. Finished runs are found again.
"""

from __future__ import annotations

import argparse
import runpy
import sys
import time
from contextlib import redirect_stdout
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import h5py
import numpy as np
import offline_scores
import torch
import yaml
from finetune_corl import OldEnv, TransformObservation, rows_of, stand_in

AS_OURS: dict[str, dict[str, Any]] = {"iql": {"tau": 0.005, "iql_deterministic": False}}
"""The defaults of its script, which are those of our config too."""
EPOCH = 1000
"""Updates that ReBRAC's script makes between its logs."""


class LoggedEnv(OldEnv):
    """`OldEnv` that hands out its log as d4rl's environments do."""

    def __init__(self, env_id: str, data: Path) -> None:
        super().__init__(env_id)
        self.data = data

    def get_dataset(self) -> dict[str, Any]:
        with h5py.File(self.data) as file:
            return {name: np.asarray(file[name]) for name in file}


def prepare(data: Path, env_id: str, returns: list[float]) -> None:
    """What the scripts import; the mean return of every evaluation is added to `returns`."""

    def log(values: dict[str, Any], step: int | None = None) -> None:
        for name in ("d4rl_normalized_score", "eval/return_mean"):
            if name in values:
                returns.append(float(values[name]))

    wrappers = ModuleType("gym.wrappers")
    wrappers.__dict__["TransformObservation"] = TransformObservation
    stand_in("gym", make=lambda _: LoggedEnv(env_id, data), Env=LoggedEnv, wrappers=wrappers)
    stand_in("d4rl", qlearning_dataset=lambda _: rows_of(data))
    stand_in("pyrallis", wrap=lambda: lambda function: function)
    run = ModuleType("run")
    run.__dict__["save"] = lambda: None
    stand_in("wandb", init=lambda **_: None, run=run, log=log, mark_preempting=lambda: None)
    for name in ("tqdm", "tqdm.auto"):
        stand_in(name, trange=lambda steps, **_: range(steps))


def published(corl: Path, algo: str, data: Path) -> dict[str, Any]:
    """CORL's settings: `hopper-medium-replay-v0` is trained as D4RL's `hopper/medium_replay_v2`."""
    env, _, quality = data.stem.rpartition("-v")[0].partition("-")
    file = corl / "configs" / "offline" / algo / env / f"{quality.replace('-', '_')}_v2.yaml"
    settings: dict[str, Any] = yaml.safe_load(file.read_text())
    return settings


def run_settings(algo: str, updates: int, seed: int) -> dict[str, Any]:
    """What a run of ours has too: its length, five evaluations, a seed."""
    if algo == "rebrac":
        epochs = updates // EPOCH
        return {"num_epochs": epochs, "eval_every": max(1, epochs // 5), "train_seed": seed}
    every = max(1, updates // 5)
    return {
        "max_timesteps": updates,
        "eval_freq": every,
        "seed": seed,
        "device": "cpu",
        "buffer_size": 200_000,
    }


def trained(
    options: argparse.Namespace, env_id: str, name: str, updates: int, seed: int
) -> offline_scores.Result:
    """Run a script from its first line to its last; the file and the seed stand for everything else."""
    torch.set_num_threads(1)
    begun, algo = time.process_time(), name.removeprefix("corl-").removesuffix("-as-ours")
    returns: list[float] = []
    prepare(options.data, env_id, returns)
    if algo == "rebrac":
        import jax

        jax.tree_map = jax.tree_util.tree_map  # its name when the script was written
    script = runpy.run_path(str(options.corl / "algorithms" / "offline" / f"{algo}.py"))
    config_class = script["Config" if algo == "rebrac" else "TrainConfig"]
    types = {field.name: field.type for field in fields(config_class)}
    settings = published(options.corl, algo, options.data) | run_settings(algo, updates, seed)
    settings |= AS_OURS[algo] if name.endswith("-as-ours") else {}
    # some rates of its files (3e-4, no point) are text to a YAML reader
    chosen = {
        name: float(value) if types[name] is float else value
        for name, value in settings.items()
        if name in types
    }
    with redirect_stdout(sys.stderr):
        # ReBRAC's was called "main" once
        script.get("main", script.get("train"))(config_class(**chosen))
    ended = {"eval_return_mean": returns[-1], "eval_returns": returns, "gradient_steps": updates}
    return ended | {"processor_seconds": time.process_time() - begun}


if __name__ == "__main__":
    parser = offline_scores.parser(__doc__)
    parser.add_argument("--corl", type=Path, required=True, help="checkout of CORL")
    offline_scores.print_table(parser.parse_args(), trained)
