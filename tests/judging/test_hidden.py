"""Logs that are silently wrong are noticed, and those that are not are left alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from judging_problems import Proportional, feedback_log
from rl_training.data import TransitionDataset
from rl_training.data.read import UnusedColumn
from rl_training.judging import judge
from rl_training.judging.hidden import (
    Tried,
    Unexplained,
    explained_by,
    from_the_first_half,
    from_the_past,
    in_shape,
    less_what_shows,
    told_apart,
    told_past,
    tried,
    unmarked_ends,
)
from rl_training.judging.log import JudgedLog
from rl_training.judging.verdict import Check

EPISODES, LENGTH = 60, 40


def name_of(kind: str, index: int) -> str:
    return f"{kind} {index}"


def column(index: int) -> str:
    return f"column {index}"


Errors = Callable[[np.random.Generator, np.ndarray, np.ndarray], np.ndarray]


def left_by(errors: Errors, seed: int = 0) -> Unexplained:
    """Leftovers of 60 episodes of 40 rows with three inputs; they make up half of all variance."""
    draws = np.random.default_rng(seed)
    inputs = draws.normal(size=(EPISODES, LENGTH, 3))
    made = errors(draws, inputs, np.arange(EPISODES) % 2)
    flat = inputs.reshape(-1, 3)
    episodes, steps = (each.reshape(-1) for each in np.indices((EPISODES, LENGTH)))
    residuals = (np.sqrt(0.5) * made).reshape(-1, 1)
    rows = np.arange(len(flat))
    return Unexplained(less_what_shows(residuals, flat, episodes), flat, episodes, steps, rows)


def noise(draws: np.random.Generator, inputs: np.ndarray, which: np.ndarray) -> np.ndarray:
    return draws.normal(size=inputs.shape[:2])


def levels(draws: np.random.Generator, inputs: np.ndarray, which: np.ndarray) -> np.ndarray:
    """A load that differs from run to run."""
    return 0.8 * noise(draws, inputs, which) + 0.6 * draws.normal(size=(EPISODES, 1))


def plants(draws: np.random.Generator, inputs: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Two plants that answer to the third input in opposite ways: the same mean everywhere."""
    return 0.8 * noise(draws, inputs, which) + 0.6 * np.where(which, 1, -1)[:, None] * inputs[..., 2]


def remembered(draws: np.random.Generator, inputs: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Two rows ago, an input that shows only now."""
    return 0.4 * noise(draws, inputs, which) + 0.9 * np.roll(inputs[..., 2], 2, axis=1)


def drifting(draws: np.random.Generator, inputs: np.ndarray, which: np.ndarray) -> np.ndarray:
    """A load that wanders within a run."""
    found = noise(draws, inputs, which)
    for step in range(1, LENGTH):
        found[:, step] = 0.95 * found[:, step - 1] + 0.31 * found[:, step]
    return found


def rough(draws: np.random.Generator, inputs: np.ndarray, which: np.ndarray) -> np.ndarray:
    """Errors of a model that has not learned its plant: the same wherever inputs are."""
    return np.sqrt(2.0) * np.cos(inputs[..., 0] + inputs[..., 1])


@pytest.mark.parametrize(
    ("errors", "apart", "past"),
    [
        (noise, "passed", "passed"),
        (rough, "passed", "passed"),
        (levels, "refused", "passed"),
        (plants, "refused", "passed"),
        (remembered, "passed", "refused"),
        (drifting, None, "refused"),
    ],
)
def test_leftovers_tell_what_is_hidden(errors: Errors, apart: str | None, past: str) -> None:
    left = left_by(errors)
    first, second = (told_apart(from_the_first_half(left), column), told_past(from_the_past(left), column))
    assert apart is None or first.outcome == apart
    assert second.outcome == past
    for check in (first, second):
        assert check.outcome == "passed" or "column 0" in check.reason


def test_clean_leftovers_raise_no_alarm() -> None:
    for seed in range(20):
        left = left_by(noise, seed)
        assert told_apart(from_the_first_half(left), column).outcome == "passed"
        assert told_past(from_the_past(left), column).outcome == "passed"


def by_run(draws: np.random.Generator, values: np.ndarray) -> np.ndarray:
    return np.repeat(values, LENGTH).astype(float)


def test_the_column_that_explains_it_is_named() -> None:
    """Among others that differ from run to run, or from row to row; a load as a number, plants as words."""
    draws = np.random.default_rng(9)
    others = [
        UnusedColumn("batch", by_run(draws, draws.integers(0, 4, EPISODES))),
        UnusedColumn("noise", draws.normal(size=EPISODES * LENGTH)),
        UnusedColumn("note", np.arange(EPISODES * LENGTH), tuple(map(str, range(EPISODES * LENGTH)))),
        UnusedColumn("always", np.ones(EPISODES * LENGTH)),
    ]
    loads = np.random.default_rng(0)  # as `levels` draws them
    loads.normal(size=(EPISODES, LENGTH, 3)), loads.normal(size=(EPISODES, LENGTH))
    load = UnusedColumn("load", by_run(draws, loads.normal(size=(EPISODES, 1))[:, 0]))
    unit = UnusedColumn("unit", by_run(draws, np.arange(EPISODES) % 2), ("north", "south"))
    for errors, column in ((levels, load), (plants, unit)):
        left = left_by(errors)
        share = from_the_first_half(left)[0].share
        found = tried(left, 0, share, [*others, column])
        assert found.columns == ("batch", "noise", column.name)
        assert found.best == column.name and found.has_few_values == (column is unit)
        assert ("each of its values alone" in found.sentence("?")) == (column is unit)
        nothing = tried(left, 0, share, others)
        assert nothing.best is None
        assert nothing.sentence("What?") == (
            "What? No other column of the log explains it (tried: batch, noise)."
        )
    assert tried(left, 0, share, []).sentence("What?") == "What?"


def test_nobody_is_asked_where_nothing_is_hidden() -> None:
    """Reading unused columns takes time."""

    def ask(target: int, share: float) -> Tried:
        raise AssertionError("asked")

    left = left_by(noise)
    assert told_apart(from_the_first_half(left), column, ask).outcome == "passed"
    assert told_past(from_the_past(left), column, ask).outcome == "passed"
    with pytest.raises(AssertionError, match="asked"):
        told_past(from_the_past(left_by(drifting)), column, ask)


def test_a_column_that_explains_a_little_is_not_named() -> None:
    """Beside a load that differs from run to run, one from row to row: sure, and not what is hidden."""
    draws = np.random.default_rng(1)
    small, large = draws.normal(size=(EPISODES, LENGTH)), draws.normal(size=EPISODES)

    def two(drawn: np.random.Generator, inputs: np.ndarray, which: np.ndarray) -> np.ndarray:
        return 0.6 * noise(drawn, inputs, which) + 0.3 * small + 0.7 * large[:, None]

    left = left_by(two)
    share = from_the_first_half(left)[0].share
    columns = [UnusedColumn("small", small.reshape(-1)), UnusedColumn("large", by_run(draws, large))]
    assert tried(left, 0, share, columns[:1]).best is None
    assert tried(left, 0, share, columns).best == "large"


def test_what_a_column_says_is_asked_of_other_episodes_than_it_was_fitted_to() -> None:
    """Twelve values without a meaning explain more than nothing of the rows they were fitted to."""
    values = np.random.default_rng(2).integers(0, 12, EPISODES * LENGTH)
    left = left_by(noise)
    shaped = in_shape(UnusedColumn("batch", values), left.rows)
    assert shaped is not None and shaped.shape == (EPISODES * LENGTH, 12)
    assert explained_by(left, shaped)[0].share < 0.0


def ending(trips: bool, marked: bool, seed: int = 0) -> JudgedLog:
    """Thirty walks of up to 50 rows; some end early, anywhere or beyond 2.5."""
    draws = np.random.default_rng(seed)
    obs, ends, dones = [], [], []
    for _ in range(30):
        walk = np.cumsum(draws.normal(0, 0.5, 51))
        beyond = np.flatnonzero(np.abs(walk[1:]) > 2.5)
        length = 50 if not trips else int(beyond[0]) + 1 if len(beyond) else 50
        length = int(draws.integers(10, 51)) if not trips else length
        obs.append(walk[: length + 1])
        ends.append(np.arange(length) == length - 1)
        dones.append(ends[-1] & marked & (length < 50))
    here = np.concatenate([each[:-1] for each in obs])[:, None].astype(np.float32)
    there = np.concatenate([each[1:] for each in obs])[:, None].astype(np.float32)
    rewards = -np.abs(there[:, 0])
    return JudgedLog(here, 0 * here, there, rewards, np.concatenate(dones), np.concatenate(ends), 0.9)


def test_early_ends_at_extremes_need_a_mark() -> None:
    found = unmarked_ends(ending(trips=True, marked=False), name_of)
    assert found.outcome == "refused"
    assert "were these trips?" in found.reason and "--terminated" in found.reason
    assert unmarked_ends(ending(trips=True, marked=True), name_of).outcome == "passed"
    for seed in range(10):
        assert unmarked_ends(ending(trips=False, marked=False, seed=seed), name_of).outcome == "passed"


QUICK: dict[str, Any] = {
    "gamma": 0.9,
    "hidden_sizes": (8, 8),
    "members": 2,
    "updates": 20,
    "model_updates": 600,
    "model_hidden_sizes": (32, 32),
    "model_members": 3,
    "learning_rate": 3e-3,
    "rollout_starts": 5,
    "importance": False,
}


def two_plants(mark: bool) -> TransitionDataset:
    """Every other episode from a plant that answers to actions with the other sign."""
    plain, other = feedback_log(episodes=40, sigma=0.5), feedback_log(episodes=40, sigma=0.5, seed=1)
    obs, actions = other.obs.reshape(40, 20), other.actions.reshape(40, 20)
    state = obs[:, 0].clone()
    here, there = [], []
    for step in range(20):
        here.append(state)
        state = 0.5 * state - 0.5 * actions[:, step]
        there.append(state)
    first, second = (torch.stack(each, 1).reshape(-1, 1) for each in (here, there))
    which = torch.cat([torch.zeros(800), torch.ones(800)])[:, None]
    rewards = -(first[:, 0] ** 2 + 0.1 * other.actions[:, 0] ** 2)
    ends = torch.cat([plain.truncations, other.truncations])  # type: ignore[list-item]

    def seen(values: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
        both = torch.cat([values, others])
        return torch.cat([both, which], 1) if mark else both

    return TransitionDataset(
        seen(plain.obs, first),
        torch.cat([plain.actions, other.actions]),
        torch.cat([plain.rewards, rewards]),
        seen(plain.next_obs, second),
        torch.zeros(1600),
        truncations=ends,
    )


class First(Proportional):
    def predict(self, obs: np.ndarray) -> np.ndarray:
        return super().predict(obs[:, :1])


def alike(data: TransitionDataset) -> Check:
    (found,) = judge(First(0.3), data, **QUICK).policies
    return found.checks["episodes_alike"]


@pytest.mark.slow
def test_two_plants_in_one_log_are_refused_unless_a_column_tells_them_apart() -> None:
    hidden = alike(two_plants(mark=False))
    assert hidden.outcome == "refused" and "Several plants" in hidden.reason
    assert alike(two_plants(mark=True)).outcome == "passed"


@pytest.mark.slow
def test_a_column_of_a_table_that_tells_plants_apart_is_named() -> None:
    data = two_plants(mark=True)
    x, unit = data.obs[:, 0].tolist(), ["north" if each else "south" for each in data.obs[:, 1]]
    table = {
        "run": np.repeat(np.arange(80), 20).tolist(),
        "x": x,
        "after": data.next_obs[:, 0].tolist(),
        "a": data.actions[:, 0].tolist(),
        "r": data.rewards.tolist(),
        "unit": unit,
    }
    columns = {
        "observations": ["x"],
        "actions": ["a"],
        "reward": "r",
        "next_observations": ["after"],
        "episode": "run",
    }
    judgement = rl_training.judge(First(0.3), table, columns=columns, **QUICK)
    told = judgement.policies[0].checks["episodes_alike"]
    assert told.outcome == "refused"
    assert "The column unit, which is no observation, explains it: add it" in told.reason
