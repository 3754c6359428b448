"""Mixing: how many rows, which ones, and that a row's fields stay together."""

import numpy as np
import pytest
import torch

from rl_training.core.errors import DataError
from rl_training.data import TransitionDataset, mix_transition_datasets
from rl_training.data.offline_mixers import mix_counts
from rl_training.data.reading import DataWarning


def part(rows: int, offset: float, *, optional: bool = True, width: int = 2) -> TransitionDataset:
    """Row i holds offset + i in every field."""
    numbers = np.arange(rows, dtype=np.float32) + offset
    wide = np.repeat(numbers[:, None], width, axis=1)
    extra = {"next_actions": numbers[:, None], "returns_to_go": numbers} if optional else {}
    return TransitionDataset(
        wide, numbers[:, None], numbers, wide, np.zeros(rows), truncations=np.zeros(rows), **extra
    )


def test_all_rows_of_all_parts_with_their_fields() -> None:
    mixed = mix_transition_datasets([part(4, 0), part(3, 100)])
    assert mixed.rewards.tolist() == [0, 1, 2, 3, 100, 101, 102]
    assert mixed.fields == part(1, 0).fields
    for name in ("obs", "actions", "next_obs", "next_actions", "returns_to_go"):
        assert torch.equal(mixed.store.whole(name).reshape(7, -1)[:, 0], mixed.rewards), name


def test_weights_fill_a_total_and_repeat_rows_evenly() -> None:
    mixed = mix_transition_datasets([part(10, 0), part(4, 100)], weights=[1, 3], total_size=12, seed=1)
    first, second = mixed.rewards[mixed.rewards < 50], mixed.rewards[mixed.rewards >= 50]
    assert len(first) == 3 and len(set(first.tolist())) == 3
    counts = np.unique(second, return_counts=True)[1]
    assert len(second) == 9 and counts.tolist().count(2) == 3 and counts.max() == 3
    assert torch.equal(mixed.obs[:, 0], mixed.rewards)


def test_the_seed_decides_which_rows() -> None:
    parts = [part(50, 0), part(50, 100)]
    mixes = [mix_transition_datasets(parts, rows=[10, 5], seed=seed).rewards for seed in (3, 3, 4)]
    assert len(mixes[0]) == 15
    assert torch.equal(mixes[0], mixes[1]) and not torch.equal(mixes[0], mixes[2])


@pytest.mark.parametrize(
    ("lengths", "weights", "rows", "total", "expected"),
    [
        ([10, 20], None, None, None, [10, 20]),
        ([10, 20], None, [5, 40], None, [5, 40]),
        ([10, 20], [1, 1], None, None, [10, 10]),
        ([10, 20], [3, 1], None, None, [10, 3]),
        ([100, 100, 100], [1, 1, 1], None, 100, [34, 33, 33]),
        ([100, 100], [0.25, 0.75], None, 10, [3, 7]),
    ],
)
def test_counts_add_up(
    lengths: list[int],
    weights: list[float] | None,
    rows: list[int] | None,
    total: int | None,
    expected: list[int],
) -> None:
    assert mix_counts(lengths, weights, rows, total) == expected


def test_an_optional_field_that_a_part_lacks_is_left_out_aloud() -> None:
    with pytest.warns(DataWarning, match="not every part of the mix has next_actions, returns_to_go"):
        mixed = mix_transition_datasets([part(3, 0), part(3, 10, optional=False)])
    assert mixed.next_actions is None and mixed.truncations is not None


def test_a_mix_has_no_episodes() -> None:
    mixed = mix_transition_datasets([part(3, 0), part(3, 10)])
    with pytest.raises(DataError, match="returns_to_go cannot be computed on mixed"):
        mixed.with_discounted_returns_to_go(0.99)


def test_parts_must_fit_together() -> None:
    with pytest.raises(DataError, match=r"same dimensions: obs are \(3,\) in data in memory but \(2,\)"):
        mix_transition_datasets([part(3, 0), part(3, 0, width=3)])
    with pytest.raises(DataError, match="at least one part"):
        mix_transition_datasets([])
    with pytest.raises(DataError, match="a part of the mix is empty"):
        mix_transition_datasets([part(3, 0), part(0, 0)])
