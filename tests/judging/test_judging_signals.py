"""Policies that are asked with signals under judgement: by a log of them, and inside a model."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.recipe import get_recipe
from rl_training.core.errors import DataError
from rl_training.core.over_log import rows_since_start
from rl_training.core.signals import Program, Signals
from rl_training.core.spaces import Spaces, unit_spaces
from rl_training.data.info import DataInfo
from rl_training.judging.log import Scale
from rl_training.judging.model import FollowedSignals
from rl_training.judging.policies import asked_by_log
from rl_training.policies.policy import Policy
from rl_training.policies.signals import SignalMemory

PROGRAM = Program(("x", "lags(a, 2)", "y", "diff(y)", "mean(x, 3)"), ("x", "y"), ("a",))
SPACES = Spaces(2, (-1.0,), (1.0,))


def policy_of(*texts: str, rate: float | None = None) -> Policy:
    recipe = get_recipe("sac")
    program = Program(texts, ("x", "y"), ("a",))
    config = recipe.settings.build({"hidden_sizes": [4]})
    learner = recipe.build_learner(config, unit_spaces(program.width, 1), seed=0, device=torch.device("cpu"))
    learner.policy.memory = SignalMemory.of(Signals(program, (0.0,), () if rate is None else (rate,)))
    learner.policy.set_units(SPACES)
    found: Policy = learner.policy.snapshot()
    return found


def test_imagined_signals_are_those_of_a_log_of_what_was_imagined() -> None:
    rng = np.random.default_rng(0)
    columns, actions = (rng.normal(size=(6, 1, width)).astype(np.float32) for width in (2, 1))
    starts = rows_since_start(np.arange(6) == 5)
    wanted = PROGRAM.over_log(columns[:, 0], actions[:, 0], starts, [0.25])
    scale = Scale(np.full(6, 0.5, np.float32), np.full(6, 2.0, np.float32))
    log: Any = SimpleNamespace(obs_scale=scale)
    followed = FollowedSignals(Signals(PROGRAM, (0.25,)), log, wanted[:1])
    for step in range(1, 6):
        predicted = rng.normal(size=(1, 1, 6)).astype(np.float32)  # of which the columns alone count
        predicted[0, 0, [0, 3]] = scale.apply(wanted[step : step + 1])[0, [0, 3]]
        found = followed.follow(torch.from_numpy(predicted), actions[step - 1])
        np.testing.assert_allclose(scale.undo(found[0].numpy())[0], wanted[step], atol=1e-5)


def test_a_policy_is_asked_with_its_own_of_the_signals_of_a_log() -> None:
    info = DataInfo("log", signals=Signals(PROGRAM, (0.0,)), observation_names=PROGRAM.names)
    rows = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    own, limited = policy_of("y", "lag(a)"), policy_of("y", "lag(a)", rate=0.05)
    for policy in (own, limited):
        asked: Any = asked_by_log("p", policy, info)
        np.testing.assert_array_equal(asked.predict(rows), policy.act(rows[:, [3, 1]]))
        assert asked.spaces.obs_dim == 6 and asked.has_distribution == (policy is own)
    assert np.abs(limited.act(rows[:, [3, 1]])[:, 0] - rows[:, 1].clip(-1, 1)).max() <= 0.05 + 1e-6
    with pytest.raises(DataError, match=r"policy p is asked with lag\(a, 3\), which log is read without"):
        asked_by_log("p", policy_of("y", "lag(a, 3)"), info)
    with pytest.raises(DataError, match=r'is read without them: do so \(--obs "y, lag\(a\)"\)'):
        asked_by_log("p", own, DataInfo("log"))
