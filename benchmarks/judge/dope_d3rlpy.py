"""d3rlpy's side of `dope.py`, started by it: one fitted Q evaluation per policy, in d3rlpy's environment.

    python dope_d3rlpy.py LOG.npz VALUES.json defaults|ours SEED UPDATES POLICY…

Weights of the policies lie beside the log. Values are written one by one.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch
from dope_policies import DopePolicy

GAMMA = 0.99


class Impl:
    """What d3rlpy's FQE asks of a trained algorithm; a fresh draw for every row."""

    def __init__(self, policy: DopePolicy, seed: int) -> None:
        self.policy, self.draws = policy, np.random.default_rng(seed)

    def predict_best_action(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.from_numpy(self.policy.draw(obs.numpy(), self.draws))


class Algo:
    """A policy in the place of one of d3rlpy's own."""

    def __init__(self, policy: DopePolicy, seed: int) -> None:
        self.impl = Impl(policy, seed)


def settings_of(way: str, rewards: Any) -> dict[str, Any]:
    """Its defaults; or, where it has a setting for it, what the judge takes."""
    if way == "defaults":
        return {"gamma": GAMMA}
    return {
        "gamma": GAMMA,
        "learning_rate": 1e-3,
        "batch_size": 128,
        "target_update_interval": 20,
        "encoder_factory": d3rlpy.models.VectorEncoderFactory([64, 64], use_layer_norm=True),
        "observation_scaler": d3rlpy.preprocessing.StandardObservationScaler(),
        "reward_scaler": d3rlpy.preprocessing.MultiplyRewardScaler(1.0 / float(rewards.std())),
    }


def main(log: str, values: str, way: str, seed: str, updates: str, *names: str) -> None:
    torch.set_num_threads(1)
    with np.load(log) as found:
        columns = dict(found)
    replay = d3rlpy.dataset.MDPDataset(
        columns["observations"],
        columns["actions"],
        columns["rewards"],
        columns["terminals"],
        timeouts=columns["timeouts"],
    )
    ends = (columns["terminals"] + columns["timeouts"]) > 0
    first = columns["observations"][np.flatnonzero(np.r_[True, ends[:-1]])]
    file = Path(values)
    told: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    for name in names:
        with np.load(Path(log).parent / "policies" / f"{name}.npz") as weights:
            policy = DopePolicy(dict(weights))
        d3rlpy.seed(int(seed))
        algo = Algo(policy, int(seed))
        start = time.process_time()
        fqe = d3rlpy.ope.FQE(algo=algo, config=d3rlpy.ope.FQEConfig(**settings_of(way, columns["rewards"])))
        fqe.fit(
            replay,
            n_steps=int(updates),
            n_steps_per_epoch=int(updates),
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
            show_progress=False,
        )
        value = float(fqe.predict_value(first, policy.draw(first, np.random.default_rng(0))).mean())
        told[name] = {"value": value, "seconds": time.process_time() - start}
        file.write_text(json.dumps(told, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
