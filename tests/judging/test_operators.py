"""Better than whom: operators that a log names are valued as they act, and policies compared with each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from judging_problems import Proportional, feedback_log, feedback_value, lqr_value
from rl_training.core.errors import DataError, UserError
from rl_training.data import TransitionDataset
from rl_training.judging import Interval, Judgement
from rl_training.judging.log import JudgedLog, operators_of
from rl_training.judging.verdict import against_the_best, best_of

SHIFTS = {"day": (0.7, 0.2), "night": (-0.3, 0.2)}
"""Gain and unrest of each."""

SETTINGS: dict[str, Any] = {
    "gamma": 0.9,
    "hidden_sizes": (16, 16),
    "members": 4,
    "updates": 650,
    "learning_rate": 3e-3,
    "batch_size": 64,
    "model_rollouts": False,
    "importance": False,
    "coverage_limit": 0.2,
}


def shifts(episodes: int = 40) -> dict[str, np.ndarray]:
    """Columns of a table: two shifts take turns by episode."""
    logs = [
        feedback_log(episodes, seed=seed, k=k, sigma=sigma) for seed, (k, sigma) in enumerate(SHIFTS.values())
    ]
    columns = {
        "level": np.concatenate([log.obs.numpy()[:, 0] for log in logs]),
        "valve": np.concatenate([log.actions.numpy()[:, 0] for log in logs]),
        "score": np.concatenate([log.rewards.numpy() for log in logs]),
        "run": np.arange(2 * episodes * 20) // 20,
        "shift": np.repeat(list(SHIFTS), episodes * 20),
    }
    return columns


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    columns, path = shifts(), tmp_path_factory.mktemp("shifts") / "log.csv"
    rows = [",".join(columns)]
    rows += [",".join(map(str, row)) for row in zip(*columns.values(), strict=True)]
    path.write_text("\n".join(rows))
    return path


COLUMNS: dict[str, Any] = {
    "observations": ["level"],
    "actions": ["valve"],
    "reward": "score",
    "episode": "run",
    "operator": "shift",
}


@pytest.fixture(scope="module")
def judged(table: Path) -> Judgement:
    policies = {"calm": Proportional(0.7), "slack": Proportional(-0.2)}
    return rl_training.judge(policies, str(table), columns=COLUMNS, **SETTINGS)


@pytest.mark.slow
def test_operators_are_valued_as_they_act(judged: Judgement) -> None:
    """With their unrest, which a policy of the same gain does not have."""
    assert [each.name for each in judged.operators] == ["day", "night"]
    for each, (k, sigma) in zip(judged.operators, SHIFTS.values(), strict=True):
        p, c = feedback_value(k, sigma)
        assert each.stints == 40
        assert each.low <= -p / 3.0 - c <= each.high
    day, night = judged.operators
    assert day.value > night.value


@pytest.mark.slow
def test_a_policy_may_beat_the_mixture_and_not_the_best_of_it(judged: Judgement) -> None:
    calm, slack = judged.policies
    p, c = feedback_value(*SHIFTS["day"])
    for policy, gain in ((calm, 0.7), (slack, -0.2)):
        found = policy.operators["day"]
        assert found.low is not None and found.high is not None
        assert found.low <= (p - lqr_value(gain)) / 3.0 + c <= found.high
    assert "best operator, day" in calm.sentence
    assert calm.operators["night"].value > calm.operators["day"].value > slack.operators["day"].value


@pytest.mark.slow
def test_two_policies_are_compared_on_the_same_resamples(judged: Judgement) -> None:
    found = judged.compare("calm", "slack")
    assert found.low is not None and found.high is not None
    assert found.low <= (lqr_value(-0.2) - lqr_value(0.7)) / 3.0 <= found.high
    back = judged.compare("slack", "calm")
    assert (back.value, back.low, back.high) == pytest.approx((-found.value, -found.high, -found.low))
    alone = judged.policies[0]
    assert found.high - found.low < alone.high - alone.low
    with pytest.raises(UserError, match="did you mean 'calm'"):
        judged.compare("clam", "slack")


def coded(codes: np.ndarray) -> tuple[TransitionDataset, JudgedLog]:
    log = feedback_log(episodes=len(codes) // 20)
    data = TransitionDataset.from_store(
        log.store.updated({"operators": torch.from_numpy(codes.astype(np.int32))}), info=log.info
    )
    return data, JudgedLog.from_dataset(data, 0.9)


def test_handing_over_ends_what_follows() -> None:
    """Episodes of 20 rows: the first operator acts 15 rows, the second the rest."""
    data, log = coded(np.tile(np.repeat([0, 1], [15, 5]), 12))
    first, second = operators_of(data, log)[0]
    assert (first.name, second.name) == ("operator 0", "operator 1")
    np.testing.assert_array_equal(first.starts, np.arange(12) * 20)
    np.testing.assert_array_equal(second.starts, np.arange(12) * 20 + 15)
    np.testing.assert_array_equal(np.flatnonzero(first.rows[:20]), np.arange(14))  # then somebody else acts
    np.testing.assert_array_equal(np.flatnonzero(second.rows[:20]), np.arange(15, 19))  # then it is cut off


def test_who_took_over_too_rarely_or_is_unknown_is_left_out() -> None:
    codes = np.repeat(np.arange(24) % 2, 20)
    codes[:20] = -1  # an empty cell
    codes[20:40] = 2
    data, log = coded(codes)
    assert [each.name for each in operators_of(data, log)[0]] == ["operator 0", "operator 1"]
    assert operators_of(*coded(np.zeros(240))) == ([], {})  # one alone is the behaviour
    with pytest.raises(DataError, match="operators has 24 values, more than 20"):
        operators_of(*coded(np.repeat(np.arange(24), 20)))


def test_the_best_operator_is_the_hardest_to_beat() -> None:
    differences = {"day": Interval(-1.0, -2.0, 0.5), "night": Interval(3.0, 1.0, 5.0)}
    assert best_of(differences) == "day"
    told = against_the_best(differences, {}, {})
    assert told == "Not distinguishable from its best operator, day: -1 [-2, 0.5]."
    better = against_the_best({"night": differences["night"]}, {}, {})
    assert better == "Better than its best operator, night, too: +3 [1, 5]."


def test_who_took_over_too_seldom_is_named_and_nobody_is_called_the_best_for_it() -> None:
    differences = {"day": Interval(3.0, 1.0, 5.0)}
    told = against_the_best(differences, {}, {"night": 9})
    assert told == (
        "Better than the best operator that can be judged, day, too: +3 [1, 5]. "
        "night took over too seldom to be judged: 9 times, 10 are the least."
    )
