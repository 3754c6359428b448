"""The replay ring: what is in it, what comes out, and that a restored one goes on the same."""

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.data.rows import ReplayBuffer

FIELDS = ("obs", "actions", "rewards", "next_obs", "dones")


def rows(start: int, count: int, lanes: int | None = None) -> dict[str, np.ndarray]:
    """Rows that tell their number (and lane) in every field."""
    number = np.arange(start, start + count, dtype=np.float32)
    if lanes is not None:
        number = number + 1000 * np.arange(lanes, dtype=np.float32)[:, None]
    return {
        "obs": np.stack([number, -number, number / 2], axis=-1),
        "actions": np.stack([number / 4, number / 8], axis=-1),
        "rewards": number,
        "next_obs": np.stack([number + 1, -number - 1, number], axis=-1),
        "dones": number % 2,
    }


def naive_ring(capacity: int, total: int) -> list[int]:
    """Which row number lies where, after adding rows 0 .. total - 1 one by one."""
    ring: list[int] = []
    for number in range(total):
        if len(ring) < capacity:
            ring.append(number)
        else:
            ring[number % capacity] = number
    return ring


@pytest.mark.parametrize("chunks", [[1] * 17, [3, 3, 3, 3, 3, 2], [7, 10], [17], [0, 6, 1, 10]])
@pytest.mark.parametrize("lanes", [None, 2])
def test_wrap_around_keeps_the_newest_rows_in_place(chunks: list[int], lanes: int | None) -> None:
    buffer = ReplayBuffer(7, 3, 2, lanes=lanes)
    total = 0
    for count in chunks:
        buffer.add(**rows(total, count, lanes))
        total += count
        assert len(buffer) == min(7, total)
    index = torch.arange(7) if lanes is None else torch.arange(7).expand(lanes, 7)
    held = buffer.gather(index)
    assert held["rewards"].tolist() == rows_at(naive_ring(7, 17), lanes)["rewards"].tolist()
    for name, expected in rows_at(naive_ring(7, 17), lanes).items():
        assert held[name].dtype == torch.float32
        np.testing.assert_array_equal(held[name].numpy(), expected)


def rows_at(numbers: list[int], lanes: int | None = None) -> dict[str, np.ndarray]:
    everything = rows(0, 100, lanes)
    return {
        name: values[numbers] if lanes is None else values[:, numbers] for name, values in everything.items()
    }


def test_gather_equals_naive_indexing() -> None:
    buffer = ReplayBuffer(50, 3, 2)
    buffer.add(**rows(0, 40))
    index = torch.randint(0, 40, (64,), generator=torch.Generator().manual_seed(0))
    batch = buffer.gather(index)
    assert set(batch) == set(FIELDS)
    for name, expected in rows_at(index.tolist()).items():
        np.testing.assert_array_equal(batch[name].numpy(), expected)


def test_lanes_are_indexed_apart() -> None:
    buffer = ReplayBuffer(50, 3, 2, lanes=3)
    buffer.add(**rows(0, 40, lanes=3))
    index = torch.randint(0, 40, (3, 8), generator=torch.Generator().manual_seed(1))
    batch = buffer.gather(index)
    assert batch["obs"].shape == (3, 8, 3)
    assert batch["dones"].shape == (3, 8)
    everything = rows(0, 40, lanes=3)
    for lane in range(3):
        for name in FIELDS:
            np.testing.assert_array_equal(batch[name][lane].numpy(), everything[name][lane][index[lane]])


def test_sample_is_uniform_over_the_filled_rows_and_repeats_with_its_generator() -> None:
    buffer = ReplayBuffer(100, 3, 2)
    buffer.add(**rows(0, 10))
    drawn = buffer.sample(20_000, generator=torch.Generator().manual_seed(3))["rewards"]
    counts = np.bincount(drawn.numpy().astype(int), minlength=10)
    assert len(counts) == 10
    assert abs(counts - 2000).max() < 5 * np.sqrt(2000)
    again = buffer.sample(20_000, generator=torch.Generator().manual_seed(3))["rewards"]
    assert torch.equal(drawn, again)
    before = torch.get_rng_state()
    buffer.sample(4, generator=torch.Generator().manual_seed(3))
    assert torch.equal(before, torch.get_rng_state())


def test_sampled_lanes_draw_their_own_rows() -> None:
    buffer = ReplayBuffer(100, 3, 2, lanes=2)
    buffer.add(**rows(0, 90, lanes=2))
    drawn = buffer.sample(32, generator=torch.Generator().manual_seed(0))["rewards"]
    assert drawn.shape == (2, 32)
    assert (drawn[0] < 1000).all() and (drawn[1] >= 1000).all()
    assert not torch.equal(drawn[0], drawn[1] - 1000)


def additions(lanes: int | None) -> Iterator[dict[str, Any]]:
    for start in range(50, 80, 3):
        yield rows(start, 3, lanes)


@pytest.mark.parametrize("filled", [0, 5, 8, 21])
@pytest.mark.parametrize("lanes", [None, 2])
def test_a_restored_ring_goes_on_the_same(filled: int, lanes: int | None) -> None:
    first = ReplayBuffer(8, 3, 2, lanes=lanes)
    first.add(**rows(0, filled, lanes))
    state = first.state_dict()
    axis = 0 if lanes is None else 1
    assert state["obs"].shape[axis] == min(filled, 8)
    assert all(state[name].is_contiguous() for name in FIELDS)
    kept = copy.deepcopy(state)
    second = ReplayBuffer(8, 3, 2, lanes=lanes)
    second.load_state_dict(state)
    for added in additions(lanes):
        first.add(**added)
        second.add(**added)
        draws = [b.sample(16, generator=torch.Generator().manual_seed(5)) for b in (first, second)]
        assert all(torch.equal(draws[0][name], draws[1][name]) for name in FIELDS)
    assert all(torch.equal(state[name], kept[name]) for name in FIELDS), "a saved state must not change later"


def test_tensors_and_arrays_are_the_same_to_it() -> None:
    given = rows(0, 5)
    one, two = ReplayBuffer(8, 3, 2), ReplayBuffer(8, 3, 2)
    one.add(**given)
    two.add(**{name: torch.from_numpy(values).requires_grad_() for name, values in given.items()})
    assert all(torch.equal(one.state_dict()[name], two.state_dict()[name]) for name in FIELDS)
    two.add(**{name: values.astype(np.float64) for name, values in given.items()})
    assert two.gather(torch.tensor([5]))["obs"].dtype == torch.float32


def test_empty_says_so() -> None:
    buffer = ReplayBuffer(8, 3, 2)
    with pytest.raises(ValueError, match="empty"):
        buffer.sample(4)
    with pytest.raises(ValueError, match="empty"):
        buffer.gather(torch.zeros(4, dtype=torch.long))


@pytest.mark.parametrize(
    ("field", "shape", "message"),
    [
        ("obs", (3,), r"obs must have shape \[n, 3\], got \[3\]"),
        ("obs", (5, 4), r"obs must have shape \[5, 3\], got \[5, 4\]"),
        ("actions", (5, 1), r"actions must have shape \[5, 2\], got \[5, 1\]"),
        ("rewards", (5, 1), r"rewards must have shape \[5\], got \[5, 1\]"),
        ("dones", (4,), r"dones must have shape \[5\], got \[4\]"),
    ],
)
def test_rows_of_the_wrong_shape_are_refused(field: str, shape: tuple[int, ...], message: str) -> None:
    buffer = ReplayBuffer(8, 3, 2)
    with pytest.raises(ValueError, match=message):
        buffer.add(**{**rows(0, 5), field: np.zeros(shape, dtype=np.float32)})
    assert len(buffer) == 0


def test_wrong_sizes_and_states_are_refused() -> None:
    with pytest.raises(ValueError, match="capacity must be >= 1, got 0"):
        ReplayBuffer(0, 3, 2)
    with pytest.raises(ValueError, match="lanes must be >= 1, got 0"):
        ReplayBuffer(5, 3, 2, lanes=0)
    with pytest.raises(ValueError, match="capacity must be 5 as in the saved replay buffer, got 6"):
        ReplayBuffer(6, 3, 2).load_state_dict(ReplayBuffer(5, 3, 2).state_dict())
    buffer = ReplayBuffer(8, 3, 2, lanes=2)
    buffer.add(**rows(0, 5, lanes=2))
    with pytest.raises(ValueError, match=r"indices must have shape \[2, B\], got \[4\]"):
        buffer.gather(torch.zeros(4, dtype=torch.long))
