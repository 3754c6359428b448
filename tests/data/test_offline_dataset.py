"""TransitionDataset: fields, sampling, ends of episodes, and the changes of units."""

import warnings
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.core.errors import DataError
from rl_training.core.transforms import ActionScaling, RewardTransform, return_range_scale
from rl_training.data import ObservationNormalizer, TransitionDataset, best_episodes, with_n_step
from rl_training.data.prepare import observation_statistics
from rl_training.data.reading import DataWarning
from toy_logs import SPACES, as_log, episodes

FIELDS = {"obs", "actions", "rewards", "next_obs", "dones"}
OPTIONAL = {"truncations", "next_actions", "returns_to_go"}


def numbered(rows: int, **optional: Any) -> TransitionDataset:
    """Row i holds i in every field, so that fields of one row can be recognised."""
    index = np.arange(rows, dtype=np.float32)
    return TransitionDataset(
        obs=np.stack([index, index], axis=1),
        actions=index[:, None],
        rewards=index,
        next_obs=np.stack([index, index], axis=1),
        dones=np.zeros(rows),
        **optional,
    )


def test_a_batch_holds_the_standard_fields_of_the_same_rows() -> None:
    batch = numbered(50).sample(8, device="cpu", generator=torch.Generator().manual_seed(0))
    assert set(batch) == FIELDS
    assert batch["obs"].shape == batch["next_obs"].shape == (8, 2)
    assert batch["actions"].shape == (8, 1) and batch["rewards"].shape == batch["dones"].shape == (8,)
    assert all(values.dtype == torch.float32 for values in batch.values())
    assert torch.equal(batch["obs"][:, 0], batch["rewards"])
    assert torch.equal(batch["actions"][:, 0], batch["rewards"])


def test_optional_fields_are_sampled_when_present() -> None:
    index = np.arange(20, dtype=np.float32)
    dataset = numbered(20, truncations=index % 2, next_actions=index[:, None], returns_to_go=index)
    batch = dataset.sample(6)
    assert set(batch) == FIELDS | OPTIONAL
    assert torch.equal(batch["returns_to_go"], batch["rewards"])
    assert set(dataset.with_fields(["returns_to_go"]).sample(2)) == FIELDS | {"returns_to_go"}


def test_the_same_generator_gives_the_same_rows() -> None:
    dataset = numbered(1000)
    draws = [
        dataset.sample(16, generator=torch.Generator().manual_seed(seed))["rewards"] for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1]) and not torch.equal(draws[0], draws[2])


def test_gather_keeps_the_shape_of_its_indices() -> None:
    dataset = numbered(10, returns_to_go=np.arange(10))
    batch = dataset.gather(torch.tensor([[3, 1], [0, 9], [5, 5]]))
    assert batch["obs"].shape == (3, 2, 2) and batch["returns_to_go"].shape == (3, 2)
    assert batch["rewards"].tolist() == [[3.0, 1.0], [0.0, 9.0], [5.0, 5.0]]


def test_action_shapes_stay_as_they_are() -> None:
    for shape in ((10, 2), (10,)):
        dataset = TransitionDataset(
            np.zeros((10, 4)), np.zeros(shape), np.ones(10), np.ones((10, 4)), np.zeros(10)
        )
        assert dataset.sample(5)["actions"].shape == (5, *shape[1:])


def test_unequal_lengths_are_refused() -> None:
    with pytest.raises(ValueError, match=r"all fields must have the same length, got obs 3, actions 4"):
        TransitionDataset(np.zeros((3, 1)), np.zeros((4, 1)), np.zeros(3), np.zeros((3, 1)), np.zeros(3))


def test_an_empty_dataset_cannot_be_sampled() -> None:
    empty = TransitionDataset(np.zeros((0, 1)), np.zeros((0, 1)), np.zeros(0), np.zeros((0, 1)), np.zeros(0))
    with pytest.raises(ValueError, match="empty"):
        empty.sample(1)
    with pytest.raises(DataError, match="empty"):
        TransitionDataset.from_dict({name: np.zeros((0, 1)) for name in FIELDS})


def test_termination_wins_over_a_time_out_in_the_same_row() -> None:
    flags = {"dones": [0, 1, 1], "truncations": [1, 1, 0]}
    direct = numbered(3, truncations=flags["truncations"])
    assert direct.truncations is not None and direct.truncations.tolist() == [1.0, 1.0, 0.0]
    for dataset in (
        TransitionDataset(np.eye(3), np.eye(3), np.ones(3), np.eye(3), **flags),
        TransitionDataset.from_dict(
            {
                "obs": np.eye(3),
                "actions": np.eye(3),
                "rewards": np.ones(3),
                "next_obs": np.eye(3),
                "terminations": flags["dones"],
                "truncations": flags["truncations"],
            }
        ),
    ):
        assert dataset.dones.tolist() == [0.0, 1.0, 1.0]
        assert dataset.truncations is not None and dataset.truncations.tolist() == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("terminal", ["terminals", "terminations", "terminated", "terminal"])
@pytest.mark.parametrize("timeout", ["timeouts", "truncations", "truncated"])
@pytest.mark.parametrize(("obs", "next_obs"), [("observations", "next_observations"), ("obs", "next_states")])
def test_synonyms(terminal: str, timeout: str, obs: str, next_obs: str) -> None:
    columns = episodes([3, 2], [True, False])
    names = {"observations": obs, "next_observations": next_obs, "terminals": terminal, "timeouts": timeout}
    dataset = TransitionDataset.from_dict({names.get(name, name): value for name, value in columns.items()})
    assert dataset.dones.tolist() == [0, 0, 1, 0, 0]
    assert dataset.truncations is not None and dataset.truncations.tolist() == [0, 0, 0, 0, 1]
    np.testing.assert_array_equal(dataset.next_obs, columns["next_observations"])


def test_dones_alone_are_terminations_with_a_warning() -> None:
    columns = episodes([3, 2], [True, True])
    columns["dones"] = columns.pop("terminals")
    del columns["timeouts"]
    with pytest.warns(DataWarning, match="time-outs cannot be told apart"):
        dataset = TransitionDataset.from_dict(columns)
    assert dataset.dones.tolist() == [0, 0, 1, 0, 1]
    assert set(dataset.sample(2)) == FIELDS


def test_dones_beside_terminals_mark_the_other_ends() -> None:
    columns = episodes([3, 2], [True, False])
    columns["dones"] = columns["terminals"] | columns.pop("timeouts")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        dataset = TransitionDataset.from_dict(columns)
    assert dataset.dones.tolist() == [0, 0, 1, 0, 0]
    assert dataset.truncations is not None and dataset.truncations.tolist() == [0, 0, 0, 0, 1]


def test_without_successors_only_rows_that_need_none_stay() -> None:
    """Episode 0 terminates, 1 is timed out, 2 is a single timed-out row, 3 terminates in its only row."""
    columns = episodes([2, 3, 1, 1], [True, False, False, True], successors=False)
    dataset = TransitionDataset.from_dict(columns)
    obs = columns["observations"]
    np.testing.assert_array_equal(dataset.obs, obs[[0, 1, 2, 3, 6]])
    np.testing.assert_array_equal(dataset.next_obs, obs[[1, 1, 3, 4, 6]])  # a terminal row shows itself
    assert dataset.dones.tolist() == [0, 1, 0, 0, 1]
    assert dataset.truncations is not None and dataset.truncations.tolist() == [0, 0, 0, 1, 0]
    rewards = columns["rewards"].astype(np.float64)
    np.testing.assert_allclose(
        dataset.episode_returns(), [rewards[:2].sum(), rewards[2:5].sum(), rewards[6]], rtol=1e-6
    )
    returns = dataset.with_discounted_returns_to_go(0.9).returns_to_go
    assert returns is not None
    assert returns[3].item() == pytest.approx(rewards[3] + 0.9 * rewards[4], rel=1e-6)


def test_a_time_out_has_the_td_target_of_any_other_row() -> None:
    """The row before a dropped one and the last row with a recorded successor both bootstrap."""
    for successors in (True, False):
        dataset = TransitionDataset.from_dict(episodes([4, 4], [False, True], successors=successors))
        value = dataset.next_obs[:, 1] * 3.0  # any function of the successor
        target = dataset.rewards + 0.99 * (1.0 - dataset.dones) * value
        assert dataset.truncations is not None
        last = int(dataset.truncations.nonzero()[0])
        assert dataset.next_obs[last, 1] == dataset.obs[last, 1] + 1
        assert target[last] == dataset.rewards[last] + 0.99 * value[last]
        assert target[-1] == dataset.rewards[-1]


def test_reward_transform_scales_then_shifts_then_clips() -> None:
    dataset = TransitionDataset(
        np.zeros((4, 1)), np.zeros((4, 1)), [-2.0, -1.0, 1.0, 4.0], np.zeros((4, 1)), np.zeros(4)
    )
    assert dataset.with_reward_transform(scale=0.5, shift=1.0, clip=(0.0, 2.0)).rewards.tolist() == [
        0,
        0.5,
        1.5,
        2,
    ]
    assert dataset.with_reward_transform(clip=1.5).rewards.tolist() == [-1.5, -1.0, 1.0, 1.5]
    assert dataset.rewards.tolist() == [-2.0, -1.0, 1.0, 4.0]
    with pytest.raises(ValueError, match="reward_clip must be"):
        dataset.with_reward_transform(clip=(1.0, 0.0))
    assert RewardTransform.from_dict(RewardTransform(2.0, -1.0, (-3.0, 3.0)).to_dict()) == RewardTransform(
        2.0, -1.0, (-3.0, 3.0)
    )


def test_given_returns_follow_a_scaling_but_nothing_else() -> None:
    dataset = numbered(3, returns_to_go=[3.0, 2.0, 1.0])
    scaled = dataset.with_reward_transform(scale=2.0).returns_to_go
    assert scaled is not None and scaled.tolist() == [6.0, 4.0, 2.0]
    with pytest.raises(DataError, match="pass returns_to_go_gamma"):
        dataset.with_reward_transform(shift=1.0)
    recomputed = dataset.with_reward_transform(shift=1.0, returns_to_go_gamma=1.0).returns_to_go
    assert recomputed is not None and recomputed.tolist() == [6.0, 5.0, 3.0]


def test_rows_out_of_order_have_no_episodes() -> None:
    chosen = numbered(6).select_rows(torch.tensor([4, 1, 1]))
    assert chosen.rewards.tolist() == [4.0, 1.0, 1.0]
    assert torch.equal(chosen.obs[:, 0], chosen.rewards)
    for ask in (
        lambda: chosen.with_discounted_returns_to_go(0.9),
        lambda: with_n_step(chosen, 3, 0.9),
        lambda: best_episodes(chosen, 0.5),
    ):
        with pytest.raises(DataError, match="cannot be computed on mixed"):
            ask()


@pytest.mark.parametrize("successors", [True, False])
def test_n_step_transitions(successors: bool) -> None:
    columns = episodes([4, 3], [True, False], successors=successors, optional=True)
    dataset = with_n_step(TransitionDataset.from_dict(columns), 3, 0.5)
    rewards = columns["rewards"].astype(np.float64)
    assert dataset.discounts is not None
    assert dataset.rewards[0].item() == pytest.approx(
        rewards[0] + 0.5 * rewards[1] + 0.25 * rewards[2], rel=1e-6
    )
    assert dataset.next_obs[0, 1] == 3 and dataset.dones[0] == 0 and dataset.discounts[0] == 0.125
    assert dataset.dones[1] == 1 and dataset.discounts[2] == 0.25
    torch.testing.assert_close(dataset.next_actions[0], torch.from_numpy(columns["next_actions"][2]))
    last = len(dataset) - 1
    assert dataset.next_obs[last, 1] == dataset.obs[last, 1] + 1
    assert dataset.dones[last] == 0 and dataset.discounts[last] == 0.5
    assert not dataset.ordered


@pytest.mark.parametrize("successors", [True, False])
def test_best_episodes_keep_whole_episodes_in_order(successors: bool) -> None:
    columns = episodes([3, 4, 2, 5], [True, False, True, False], successors=successors)
    returns = np.repeat([5.0, 1.0, 3.0, 9.0], [3, 4, 2, 5])
    columns["rewards"] = (returns / np.repeat([3, 4, 2, 5], [3, 4, 2, 5])).astype(np.float32)
    best = best_episodes(TransitionDataset.from_dict(columns), 0.5)
    assert sorted(set(best.obs[:, 0].tolist())) == [0.0, 3.0]
    np.testing.assert_allclose(best.episode_returns(), [5.0, 9.0], rtol=1e-6)
    assert best.ordered and len(best) == 3 + 5 - (not successors)
    smallest = best_episodes(TransitionDataset.from_dict(columns), 0.01)
    assert set(smallest.obs[:, 0].tolist()) == {3.0}
    with pytest.raises(ValueError, match="top_fraction must be > 0 and <= 1, got 0"):
        best_episodes(smallest, 0.0)


def test_compacting_changes_no_row() -> None:
    dataset = TransitionDataset.from_log(
        as_log(episodes([4, 3, 5], [False, True, False], successors=False, optional=True))
    )
    compact = dataset.compacted()
    assert not compact.store.row_maps and compact.fields == dataset.fields
    rows = torch.arange(len(dataset))
    for name, values in dataset.gather(rows).items():
        assert torch.equal(compact.gather(rows)[name], values)


def test_observation_normaliser_follows_the_population_formula() -> None:
    obs = np.array([[1.0, 10.0], [2.0, 10.0], [4.0, 10.0]], dtype=np.float32)
    dataset = TransitionDataset(obs, np.zeros((3, 1)), np.zeros(3), obs, np.zeros(3))
    normalizer = observation_statistics(dataset)
    torch.testing.assert_close(normalizer.mean, torch.tensor([2.333333, 10.0]), rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(normalizer.std + 1e-3, torch.tensor([1.248219, 0.001]), rtol=1e-6, atol=1e-6)
    expected = torch.tensor([[-1.068189, 0.0], [-0.267047, 0.0], [1.335236, 0.0]])
    torch.testing.assert_close(normalizer.apply(torch.from_numpy(obs)), expected, rtol=1e-5, atol=1e-6)
    restored = ObservationNormalizer.from_state_dict(normalizer.state_dict())
    np.testing.assert_array_equal(restored.apply_to_array(obs), normalizer.apply_to_array(obs))


def test_iql_scales_rewards_by_the_range_of_returns() -> None:
    assert return_range_scale(np.array([10.0, 250.0, 40.0])) == pytest.approx(4.166667, rel=1e-6)
    with pytest.raises(DataError, match="normalize_reward needs episodes with different returns"):
        return_range_scale(np.array([3.0, 3.0]))


def test_action_scaling_is_exact_at_the_bounds_and_undone_by_the_spaces() -> None:
    scaling = ActionScaling.between(SPACES.action_low, SPACES.action_high)
    corners = torch.tensor([[-2.0, -1.0], [2.0, 3.0], [0.0, 1.0]])
    assert scaling.apply(corners).tolist() == [[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]]
    actions = (
        np.random.default_rng(0).uniform(SPACES.action_low, SPACES.action_high, (100, 2)).astype(np.float32)
    )
    unit = scaling.apply(torch.from_numpy(actions)).numpy()
    np.testing.assert_array_equal(unit, SPACES.to_unit(actions))
    np.testing.assert_allclose(SPACES.to_env(unit), actions, atol=3e-7)
    clipped = ActionScaling.between(SPACES.action_low, SPACES.action_high, 0.99999).apply(corners)
    assert clipped.abs().max().item() == pytest.approx(0.99999)
    assert torch.isfinite(torch.atanh(clipped)).all()
