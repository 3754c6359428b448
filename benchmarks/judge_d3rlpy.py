"""d3rlpy's fitted Q evaluation on the policies of `judge_truth.py`, with its defaults or settings near ours.

    python benchmarks/judge_d3rlpy.py --data DIR --set pendulum-random --updates 6000 [--ours]

Needs d3rlpy in the environment. One training per policy; results are kept next to those of the judge.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import d3rlpy
import numpy as np
import torch
from judge_policies import DATA_SETS, GAMMA, truth_of
from scipy.stats import spearmanr

from rl_training.data import load_transition_dataset


class Impl:
    """What d3rlpy's FQE asks of a trained algorithm."""

    def __init__(self, policy: Any) -> None:
        self.policy = policy

    def predict_best_action(self, obs: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.policy.predict(obs.numpy()))


class Algo:
    def __init__(self, policy: Any) -> None:
        self.impl, self.policy = Impl(policy), policy

    def predict(self, obs: Any) -> Any:
        return self.policy.predict(obs)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--set", choices=list(DATA_SETS), required=True, dest="name")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--updates", type=int, default=6000)
    parser.add_argument(
        "--ours", action="store_true", help="our learning rate and batch instead of the defaults"
    )
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/judge_truth"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    data_set = DATA_SETS[options.name]
    policies, truth = truth_of(data_set, options.data, options.out / options.name, options.seed)
    rows = load_transition_dataset("hdf5", dataset_path=options.data / data_set.file)
    ends = rows.episode_ends()
    terminals = rows.dones.numpy()
    replay = d3rlpy.dataset.MDPDataset(
        rows.obs.numpy(),
        rows.actions.numpy(),
        rows.rewards.numpy(),
        terminals,
        timeouts=(ends & (terminals == 0)).astype(np.float32),
    )
    first = rows.obs.numpy()[np.flatnonzero(np.r_[True, ends[:-1]])]
    settings: dict[str, Any] = {"gamma": GAMMA}
    if options.ours:
        settings |= {"learning_rate": 1e-3, "batch_size": 128}
    values, start = {}, time.process_time()
    for name, policy in policies.items():
        d3rlpy.seed(options.seed)
        fqe = d3rlpy.ope.FQE(algo=Algo(policy), config=d3rlpy.ope.FQEConfig(**settings))
        fqe.fit(
            replay,
            n_steps=options.updates,
            n_steps_per_epoch=options.updates,
            logger_adapter=d3rlpy.logging.NoopAdapterFactory(),
            show_progress=False,
        )
        values[name] = float(fqe.predict_value(first, policy.predict(first)).mean())
        print(f"{name:14s} true {truth[name]['value']:8.1f}  d3rlpy {values[name]:8.1f}", flush=True)
    seconds = time.process_time() - start
    found, true = np.array(list(values.values())), np.array([truth[name]["value"] for name in values])
    scale = true.max() - true.min()
    summary = {
        "spearman": float(spearmanr(found, true).statistic),
        "regret@1": float((true.max() - true[found.argmax()]) / scale),
        "error": float(np.abs(found - true).mean() / scale),
        "seconds": seconds,
    }
    print(options.name, "ours" if options.ours else "defaults", options.updates, summary)
    kind = "ours" if options.ours else "defaults"
    file = options.out / options.name / f"d3rlpy-{kind}-s{options.seed}.json"
    file.write_text(json.dumps({"values": values, **summary}, indent=1))


if __name__ == "__main__":
    main()
