"""Worker side of axiomrl."""

from __future__ import annotations

import importlib
from typing import Any

import torch
from batches import endless
from protocol import ACTION_DIM, OBS_DIM, Meter, Spec

COMMON = {"learning_rate": 3e-4}
VALUES = {**COMMON, "gamma": 0.99, "tau": 0.005}
ENTROPY = {**VALUES, "alpha": 0.2}

ALGORITHMS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bc": ("BC", "bc", COMMON),
    "td3_bc": (
        "TD3BC",
        "td3",
        {**VALUES, "policy_noise": 0.2, "noise_clip": 0.5, "policy_delay": 2, "bc_alpha": 2.5},
    ),
    "awac": ("AWAC", "sac", {**VALUES, "awac_lambda": 1.0, "max_advantage_weight": 100.0}),
    "crr": (
        "CRR",
        "sac",
        {
            **VALUES,
            "beta": 1.0,
            "n_action_samples": 4,
            "max_weight": 20.0,
            "advantage_type": "mean",
            "weight_type": "exp",
        },
    ),
    "iql": ("IQL", "iql", {**VALUES, "expectile": 0.7, "beta": 1 / 3, "max_advantage_weight": 100.0}),
    "cql": ("CQL", "sac", {**ENTROPY, "cql_alpha": 5.0, "num_cql_samples": 10}),
    "cal_ql": ("CalQL", "sac", {**ENTROPY, "cql_alpha": 5.0, "num_cql_samples": 10}),
    "sac": ("SAC", "sac", ENTROPY),
    "tqc": ("TQC", "tqc", {**ENTROPY, "top_quantiles_to_drop_per_net": 2, "num_quantiles": 25}),
    "redq": ("REDQ", "redq", {**ENTROPY, "num_critics": 10, "subset_size": 2}),
}


def updates(spec: Spec) -> None:
    torch.set_num_threads(spec.threads)
    name, family, keywords = ALGORITHMS[spec.algo]
    model_class = getattr(
        importlib.import_module(f"axiomrl.models.mlp_{family}"), f"MLP{family.upper()}Model"
    )
    model = model_class(obs_dim=OBS_DIM, action_dim=ACTION_DIM, hidden_sizes=spec.widths)
    learner = getattr(importlib.import_module(f"axiomrl.algorithms.{spec.algo}"), name)(
        model=model, **keywords
    )
    batches = endless(spec, lambda batch: {key: torch.from_numpy(values) for key, values in batch.items()})
    unit = 2 if spec.algo == "td3_bc" else 1

    def update() -> None:
        for _ in range(unit):
            learner.update(next(batches), global_step=0)

    Meter(unit=unit).repeat(update)


KINDS = {"update": updates}
