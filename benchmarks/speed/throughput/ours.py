"""Worker side of this package: bare updates, compiled or eager, of one seed or of a stack of them."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from batches import Arrays, endless
from protocol import ACTION_DIM, CHOICES, OBS_DIM, SEEDS, Meter, Spec

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.stack import stack_learners
from rl_training.core.machine import keep_freed_memory
from rl_training.core.spaces import Choice, Spaces
from rl_training.experiment.registry import get_algorithm_spec

MODEL_KEYWORDS: dict[str, dict[str, Any]] = {
    "awac": {"policy": "tanh_mean"},
    "tqc": {"num_critics": 2, "num_quantiles": 25},
    "redq": {"num_critics": 10},
}
LEARNER_KEYWORDS: dict[str, dict[str, Any]] = {
    "awac": {"weighting": "softmax", "temperature": 1.0},
    "crr": {"target_update": "soft"},
    "cql": {"backup_entropy": True},
    "cal_ql": {"backup_entropy": True},
    "tqc": {"top_quantiles_to_drop_per_net": 2},
    "redq": {"subset_size": 2, "alpha": 0.2, "policy_delay": 1},
}
"""What is set so that both sides compute the same (`peers.py`); all else are defaults."""

UNITS = {"td3": 2, "td3_bc": 2, "rebrac": 2}
"""Updates after which an algorithm's pattern repeats: delayed actors."""


def make_learner(spec: Spec, seed: int = 0) -> Learner:
    recipe = get_algorithm_spec(spec.algo).recipe
    levels = Spaces.of(OBS_DIM, [Choice(tuple(map(float, range(ACTION_DIM))))])
    model = recipe.model(
        OBS_DIM,
        ACTION_DIM,
        hidden_sizes=spec.widths,
        generator=torch.Generator().manual_seed(seed),
        **({"spaces": levels} if spec.algo in CHOICES else {}),
        **MODEL_KEYWORDS.get(spec.algo, {}),
    )
    learner: Learner = recipe.learner(model, seed=seed, **LEARNER_KEYWORDS.get(spec.algo, {}))
    return learner


def updates(spec: Spec) -> None:
    """`compiled` or `eager`, of one learner; with `-stack` of eight at once."""
    torch.set_num_threads(spec.threads)
    keep_freed_memory()  # as every run does
    mode, _, stacked = spec.candidate.partition("-")
    if stacked:
        learner = stack_learners([make_learner(spec, seed) for seed in range(SEEDS)])
    else:
        learner = make_learner(spec)
    if mode == "compiled":
        learner.compile()
    fields = {"obs", "actions", "rewards", "next_obs", "dones"} | learner.needs
    batches = endless(spec, lambda batch: to_batch(spec, batch, fields), (SEEDS,) if stacked else ())
    unit = UNITS.get(spec.algo, 1)

    def update() -> None:
        for _ in range(unit):
            learner.update(next(batches), global_step=0)

    Meter(unit=unit).repeat(update)


def to_batch(spec: Spec, batch: Arrays, fields: Collection[str]) -> dict[str, torch.Tensor]:
    found = {name: torch.from_numpy(batch[name]) for name in sorted(fields)}
    if spec.algo in CHOICES:
        taken = torch.from_numpy(batch["levels"]).long()
        found["actions"] = 2.0 * torch.nn.functional.one_hot(taken, ACTION_DIM).float() - 1.0
    return found


def whole_run(spec: Spec) -> None:
    from ours_runs import offline_run

    offline_run(spec)


def environment_steps(spec: Spec) -> None:
    from ours_runs import online_run

    online_run(spec)


KINDS = {"update": updates, "stack": updates, "run": whole_run, "steps": environment_steps}
