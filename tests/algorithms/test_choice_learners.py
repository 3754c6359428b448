"""IQL, AWAC, CRR and BC on choices and mixtures: problems with known answers, and every way of running."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_bandit as toy
from rl_training.algorithms import AWAC, BC, CQL, CRR, IQL
from rl_training.algorithms.learner import Learner
from rl_training.core.errors import ConfigError
from rl_training.core.spaces import Box, Choice, Spaces
from rl_training.models import MLPAWACModel, MLPBCModel, MLPIQLModel, MLPSACModel, PolicyModel

PUMP = Spaces.of(1, [Choice(("off", "on"))])
MIXED = Spaces.of(checks.OBS, [Choice((0.0, 1.0, 2.0)), Box(0.0, 5.0), Choice(("off", "on"))])
CHOICES = Spaces.of(checks.OBS, [Choice((0.0, 1.0, 2.0)), Choice(("off", "on"))])
MODELS: dict[type[Learner], type[PolicyModel]] = {
    IQL: MLPIQLModel,
    AWAC: MLPAWACModel,
    CRR: MLPSACModel,
    BC: MLPBCModel,
}


def build(kind: type[Learner], spaces: Spaces, seed: int = 0, **keywords: Any) -> Learner:
    generator = torch.Generator().manual_seed(seed)
    model = MODELS[kind](
        spaces.obs_dim, spaces.action_dim, spaces=spaces, hidden_sizes=(16, 16), generator=generator
    )
    return kind(model, seed=seed, **keywords)


def bandit(share_of_on: float = 0.5) -> dict[str, Tensor]:
    """The two actions of `toy.bandit` as levels: on pays 1, off nothing."""
    batch = toy.bandit(share_of_on)
    on = batch["actions"] > 0
    return {**batch, "actions": torch.cat([~on, on], dim=-1).float() * 2.0 - 1.0}


@torch.no_grad()
def share_of_on(learner: Learner) -> float:
    values = learner.model.actor.distribution(torch.ones(1, 1))[0]  # type: ignore[operator]
    return float(values[0, 1].exp())


@pytest.mark.parametrize(
    ("kind", "keywords", "logged", "log_odds"),
    [
        (IQL, {"expectile": 0.7, "beta": 3.0}, 0.5, 3.0),
        (IQL, {"expectile": 0.9, "beta": 1.0}, 0.25, 1.0 - math.log(3.0)),
        (AWAC, {"temperature": 1.0}, 0.5, 1.0),
        (AWAC, {"temperature": 1.0, "weighting": "softmax", "baseline": "mean_action"}, 0.5, 1.0),
        (CRR, {"weight_type": "exp", "beta": 1.0, "target_update_interval": 10}, 0.5, 1.0),
        (BC, {}, 0.25, -math.log(3.0)),
    ],
)
def test_bandit_of_two_levels(
    kind: type[Learner], keywords: dict[str, Any], logged: float, log_odds: float
) -> None:
    """A regression weighted by exp(kappa A) multiplies the odds of the log by exp(kappa)."""
    settings = {} if kind is BC else {"tau": 0.1}
    learner = build(kind, PUMP, learning_rate=1e-2, **settings, **keywords)
    toy.fit(learner, bandit(logged), updates=300)
    assert share_of_on(learner) == pytest.approx(1.0 / (1.0 + math.exp(-log_odds)), abs=0.03)
    if isinstance(learner, IQL):
        tau = learner.config.expectile
        value = tau * logged / (tau * logged + (1.0 - tau) * (1.0 - logged))
        assert learner.value(torch.ones(1, 1)).item() == pytest.approx(value, abs=0.03)


def test_a_binary_filter_keeps_the_better_level_alone() -> None:
    how = {"weight_type": "binary", "n_action_samples": 32, "target_update": "soft", "tau": 0.1}
    learner = build(CRR, PUMP, learning_rate=5e-2, **how)
    toy.fit(learner, bandit(), updates=300)
    assert share_of_on(learner) > 0.95


PLAIN_BATCH = checks.random_batch


def random_batch(spaces: Spaces, seed: int) -> dict[str, Tensor]:
    batch = PLAIN_BATCH(seed)
    uniform = torch.rand(checks.BATCH, spaces.action_columns, generator=torch.Generator().manual_seed(seed))
    return {**batch, "actions": torch.from_numpy(spaces.random(uniform.numpy() * 2.0 - 1.0))}


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("spaces", [MIXED, CHOICES], ids=["mixed", "choices"])
def test_every_way_of_running_gives_the_same_learner(
    kind: type[Learner], spaces: Spaces, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checks, "random_batch", lambda seed: random_batch(spaces, seed))
    make: Callable[[int], Learner] = lambda seed: build(kind, spaces, seed)  # noqa: E731
    checks.check_stacked_equals_single(make, updates=2, seeds=(0, 1))
    checks.check_resumes_exactly(make, updates=2)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [IQL, CRR])
def test_a_compiled_update_is_the_eager_one(kind: type[Learner]) -> None:
    checks.check_compiled_equals_eager(
        lambda seed: build(kind, MIXED, seed),
        updates=6,
        batch=lambda seed: random_batch(MIXED, seed),
        backend=checks.GRAPHS,
    )


def test_what_has_no_maths_for_choices_refuses_the_model() -> None:
    with pytest.raises(ConfigError, match=r"CQL takes actions of numbers, those of .* spaces are mixtures"):
        CQL(MLPSACModel(checks.OBS, MIXED.action_dim, spaces=MIXED))
