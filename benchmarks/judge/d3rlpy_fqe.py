"""d3rlpy's fitted Q evaluation on the policies of `truth.py`, with its defaults or settings like ours.

    python benchmarks/judge/d3rlpy_fqe.py --data DIR [--set pendulum-random …] [--seeds 0 1] [--ours]

Needs d3rlpy beside this library (an environment of its own: d3rlpy asks for another gymnasium). One training
per policy, as many updates as the judge makes. `--ours` keeps its method and takes what the judge takes where
it has a setting for it: step size, batch, widths, how fast targets follow, normalised states and rewards.
Values are kept next to the judge's, policy by policy, so the command can be stopped and repeated.
"""

from __future__ import annotations

import argparse
import json
import time
from typing import Any

import numpy as np
import policies
import torch
from measures import measures, print_rows
from policies import GAMMA, DataSet, chosen, truth_of

from rl_training.data import TransitionDataset, load_transition_dataset

UPDATES = 6000


class Impl:
    """What d3rlpy's FQE asks of a trained algorithm."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def predict_best_action(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.policy.predict(obs.numpy()))


class Algo:
    """A policy in the place of one of d3rlpy's own."""

    def __init__(self, policy: Any) -> None:
        self.impl, self.policy = Impl(policy), policy

    def predict(self, obs: Any) -> Any:
        return self.policy.predict(obs)


def replay_of(rows: TransitionDataset) -> Any:
    """The log as d3rlpy has it."""
    import d3rlpy

    terminals = rows.dones.numpy()
    cut = (rows.episode_ends() & (terminals == 0)).astype(np.float32)
    columns = (rows.obs.numpy(), rows.actions.numpy(), rows.rewards.numpy())
    return d3rlpy.dataset.MDPDataset(*columns, terminals, timeouts=cut)


def settings_of(rows: TransitionDataset, ours: bool) -> dict[str, Any]:
    if not ours:
        return {"gamma": GAMMA}
    import d3rlpy

    return {
        "gamma": GAMMA,
        "learning_rate": 1e-3,
        "batch_size": 128,
        "target_update_interval": 20,
        "encoder_factory": d3rlpy.models.VectorEncoderFactory([64, 64]),
        "observation_scaler": d3rlpy.preprocessing.StandardObservationScaler(),
        "reward_scaler": d3rlpy.preprocessing.MultiplyRewardScaler(1.0 / float(rows.rewards.std())),
    }


def value_of(policy: Any, rows: TransitionDataset, seed: int, options: argparse.Namespace) -> float:
    """Train on the log and read the value off its first states."""
    import d3rlpy

    updates = max(1, round(options.share * UPDATES))
    d3rlpy.seed(seed)
    config = d3rlpy.ope.FQEConfig(**settings_of(rows, options.ours))
    fqe = d3rlpy.ope.FQE(algo=Algo(policy), config=config)
    fqe.fit(
        replay_of(rows),
        n_steps=updates,
        n_steps_per_epoch=updates,
        logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
        show_progress=False,
    )
    first = rows.obs.numpy()[np.flatnonzero(np.r_[True, rows.episode_ends()[:-1]])]
    return float(fqe.predict_value(first, policy.predict(first)).mean())


def evaluated(data_set: DataSet, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """The measures of one data set and seed; policies that are known already are not fitted again."""
    kind = "ours" if options.ours else "defaults"
    folder = options.out / data_set.name
    file = folder / f"d3rlpy-{kind}-s{seed}.json"
    known, truth = truth_of(data_set, options.data, folder, seed)
    told: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"values": {}, "seconds": 0.0}
    rows = load_transition_dataset("hdf5", dataset_path=options.data / data_set.file)
    for name, policy in known.items():
        if name in told["values"]:
            continue
        start = time.process_time()
        told["values"][name] = value_of(policy, rows, seed, options)
        told["seconds"] += time.process_time() - start
        file.write_text(json.dumps(told, indent=1))
        true = truth[name]["value"]
        print(f"{name:14s} true {true:8.1f}  d3rlpy {told['values'][name]:8.1f}", flush=True)
    true = np.array([truth[name]["value"] for name in told["values"]])
    found = measures(np.array(list(told["values"].values())), true)
    return {"data": f"{data_set.name} {seed}", "settings": kind, **found, "cpu seconds": told["seconds"]}


def main() -> None:
    parser = policies.parser(__doc__, results="truth")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--ours", action="store_true", help="settings like ours instead of the defaults")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print_rows([evaluated(each, options, seed) for seed in options.seeds for each in chosen(options)])


if __name__ == "__main__":
    main()
