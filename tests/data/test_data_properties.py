"""Properties over random episode structures."""

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rl_training.core.errors import DataError
from rl_training.data import TransitionDataset, compute_discounted_returns_to_go, mix_transition_datasets
from rl_training.data.convert import DatasetLocation, convert, read_location, write_location
from rl_training.data.episodes import episode_ends
from rl_training.data.log import EpisodeLog
from toy_logs import Columns, as_log, episodes

QUICK = settings(max_examples=60, deadline=None)
WITH_FILES = settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def structures(draw: Any) -> tuple[list[int], list[bool]]:
    """Lengths of episodes and whether each terminates."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=8))
    terminated = draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths)))
    return lengths, terminated


def usable(columns: Columns, lengths: list[int], terminated: list[bool]) -> bool:
    """Whether at least one whole transition is left without recorded successors."""
    return any(length > 1 or ends for length, ends in zip(lengths, terminated, strict=True))


@QUICK
@given(
    structure=structures(),
    gamma=st.floats(0.0, 1.0),
    seed=st.integers(0, 999),
    failure=st.sampled_from([None, 0.0]),
)
def test_returns_to_go_equal_a_slow_reference(
    structure: tuple[list[int], list[bool]], gamma: float, seed: int, failure: float | None
) -> None:
    lengths, terminated = structure
    columns = episodes(lengths, terminated, seed=seed)
    rewards = np.random.default_rng(seed).integers(0, 2, size=sum(lengths)).astype(np.float64)
    if gamma == 1.0:
        failure = None
    found = compute_discounted_returns_to_go(
        rewards, columns["terminals"], gamma, columns["timeouts"], failure_reward=failure
    )
    expected = []
    for stop, length in zip(np.cumsum(lengths), lengths, strict=True):
        own = rewards[stop - length : stop]
        for start in range(length):
            plain = sum(gamma**k * reward for k, reward in enumerate(own[start:]))
            expected.append(0.0 if failure is not None and not own.any() else plain)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)


@QUICK
@given(structure=structures(), successors=st.booleans(), optional=st.booleans(), seed=st.integers(0, 999))
def test_no_transition_crosses_an_episode(
    structure: tuple[list[int], list[bool]], successors: bool, optional: bool, seed: int
) -> None:
    """Column 0 of an observation is its episode, column 1 its step."""
    columns = episodes(*structure, successors=successors, optional=optional, seed=seed)
    log = as_log(columns)
    if not log.complete.any():
        with pytest.raises(DataError, match="no row has a successor"):
            TransitionDataset.from_log(log)
        return
    dataset = TransitionDataset.from_log(log)
    for data in (dataset, dataset.select_rows(torch.arange(len(dataset)).flip(0))):
        assert torch.equal(data.obs[:, 0], data.next_obs[:, 0])
        follows = data.next_obs[:, 1] - data.obs[:, 1]
        alive = data.dones == 0
        assert (follows[alive] == 1).all()
        assert ((follows[~alive] == 1) if successors else (follows[~alive] == 0)).all()
    starts = np.flatnonzero(dataset.episode_ends()[:-1]) + 1
    assert (dataset.obs[starts, 1] == 0).all()
    totals = np.bincount(np.repeat(np.arange(len(structure[0])), structure[0]), weights=columns["rewards"])
    kept = np.unique(dataset.obs[:, 0].numpy()).astype(int)
    np.testing.assert_allclose(dataset.episode_returns(), totals[kept], rtol=1e-5, atol=1e-6)


@QUICK
@given(
    structure=structures(),
    n_step=st.integers(1, 5),
    gamma=st.floats(0.1, 1.0),
    seed=st.integers(0, 999),
)
def test_n_step_targets_equal_a_slow_reference(
    structure: tuple[list[int], list[bool]], n_step: int, gamma: float, seed: int
) -> None:
    from rl_training.data import with_n_step

    columns = episodes(*structure, seed=seed)
    dataset = with_n_step(TransitionDataset.from_log(as_log(columns)), n_step, gamma)
    ends = episode_ends(columns["terminals"], columns["timeouts"])
    for row in range(len(ends)):
        last, total, factor = row, 0.0, 1.0
        for step in range(n_step):
            last = row + step
            total += factor * float(columns["rewards"][last])
            factor *= gamma
            if ends[last]:
                break
        assert abs(dataset.rewards[row].item() - total) < 1e-4
        assert dataset.discounts is not None and abs(dataset.discounts[row].item() - factor) < 1e-6
        assert torch.equal(dataset.next_obs[row], torch.from_numpy(columns["next_observations"][last]))
        assert dataset.dones[row].item() == columns["terminals"][last]


@QUICK
@given(
    sizes=st.lists(st.integers(1, 30), min_size=1, max_size=4),
    weights=st.lists(st.floats(0.05, 1.0), min_size=4, max_size=4),
    total=st.one_of(st.none(), st.integers(1, 60)),
    seed=st.integers(0, 999),
)
def test_mixing_keeps_the_fields_of_a_row_together(
    sizes: list[int], weights: list[float], total: int | None, seed: int
) -> None:
    parts = []
    for index, size in enumerate(sizes):
        numbers = np.arange(size, dtype=np.float32) + 1000 * index
        wide = np.stack([numbers, -numbers], axis=1)
        parts.append(
            TransitionDataset(
                wide, wide, numbers, wide + 1, numbers % 2, next_actions=wide + 2, returns_to_go=numbers * 3
            )
        )
    chosen = weights[: len(sizes)]
    mixed = mix_transition_datasets(parts, weights=chosen, total_size=total, seed=seed)
    again = mix_transition_datasets(parts, weights=chosen, total_size=total, seed=seed)
    numbers = mixed.rewards
    assert total is None or len(mixed) == total
    assert torch.equal(mixed.obs[:, 0], numbers) and torch.equal(mixed.obs[:, 1], -numbers)
    assert torch.equal(mixed.next_obs[:, 0], numbers + 1) and torch.equal(mixed.actions[:, 1], -numbers)
    assert torch.equal(mixed.next_actions[:, 0], numbers + 2)  # type: ignore[index]
    assert torch.equal(mixed.returns_to_go, numbers * 3) and torch.equal(mixed.dones, numbers % 1000 % 2)  # type: ignore[arg-type]
    assert torch.equal(again.rewards, numbers)


@WITH_FILES
@given(
    structure=structures(),
    successors=st.booleans(),
    optional=st.booleans(),
    double=st.booleans(),
    seed=st.integers(0, 999),
)
def test_a_tour_through_all_formats_is_the_identity(
    structure: tuple[list[int], list[bool]], successors: bool, optional: bool, double: bool, seed: int
) -> None:
    columns = episodes(*structure, successors=successors, optional=optional, seed=seed)
    if not usable(columns, *structure):
        return
    log = as_log(columns)
    if double:
        log = EpisodeLog(**{**vars(log), "rewards": log.rewards.astype(np.float64) / 3.0})
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tour = [
            DatasetLocation("hdf5", folder / "a.hdf5"),
            DatasetLocation("npz", folder / "b.npz"),
            DatasetLocation("minari", folder / "minari", "toy/tour-v0"),
            DatasetLocation("parquet", folder / "c.parquet"),
            DatasetLocation("hdf5", folder / "d.hdf5"),
        ]
        write_location(log, tour[0])
        for source, target in pairwise(tour):
            convert(source, target)
        back = read_location(tour[-1], exact=True)
    assert back.info.spaces == log.info.spaces and back.info.env_id == log.info.env_id
    assert back.rewards.dtype == log.rewards.dtype
    before, after = TransitionDataset.from_log(log), TransitionDataset.from_log(back)
    assert before.fields == after.fields
    for field in before.fields:
        assert torch.equal(before.store.whole(field), after.store.whole(field)), field
    np.testing.assert_array_equal(before.episode_returns(), after.episode_returns())
    lonely = not successors and any(length == 1 and not ends for length, ends in zip(*structure, strict=True))
    if not lonely:  # a single row without successor is no transition, and Minari has no place for it
        assert back.columns.keys() == log.columns.keys()
        for name, column in log.columns.items():
            np.testing.assert_array_equal(back.columns[name], column)
