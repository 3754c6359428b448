"""Fields that a learner needs, worked out from the log; held-out episodes; logs without rewards."""

from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.config.data import OfflineDataFields, OfflineFields
from rl_training.config.run import TrainConfig
from rl_training.core.errors import ConfigError, DataError
from rl_training.core.spaces import Spaces
from rl_training.data import TransitionDataset, process_offline_dataset
from rl_training.data.fields import all_fields
from rl_training.data.splits import best_episodes, logged_episodes, split_episodes
from rl_training.runtime.offline_data import build_offline_dataset, infer_env_spaces
from toy_logs import LENGTHS, TERMINATED, as_log, episodes

SPACES = Spaces(1, (-1.0,), (1.0,))


def log(*, successors: bool) -> TransitionDataset:
    """Episodes of 3 rows (terminated) and 3 rows (cut); actions .1 to .6 in the order of the rows."""
    values: dict[str, Any] = {
        "obs": np.arange(6.0)[:, None],
        "actions": np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])[:, None],
        "rewards": np.arange(6.0),
        "terminals": [0, 0, 1, 0, 0, 0],
        "timeouts": [0, 0, 0, 0, 0, 1],
    }
    if successors:
        values["next_obs"] = np.array([1.0, 2.0, 9.0, 4.0, 5.0, 6.0])[:, None]
    return TransitionDataset.from_dict(values)


def prepared(data: TransitionDataset, *, needs: set[str], **settings: Any) -> TransitionDataset:
    fields = OfflineDataFields(**settings)
    return process_offline_dataset([data], fields, SPACES, gamma=0.5, needs=frozenset(needs)).dataset


def test_the_next_action_is_that_of_the_next_row() -> None:
    recorded = prepared(log(successors=True), needs={"next_actions"}).next_actions
    assert recorded is not None  # own action where nothing follows: at the end of both episodes
    np.testing.assert_allclose(recorded[:, 0], [0.2, 0.3, 0.3, 0.5, 0.6, 0.6], rtol=1e-6)
    implied = prepared(log(successors=False), needs={"next_actions"}).next_actions
    assert implied is not None  # the last row of the cut episode is dropped, but its action was logged
    np.testing.assert_allclose(implied[:, 0], [0.2, 0.3, 0.3, 0.5, 0.6], rtol=1e-6)


def test_next_actions_share_their_memory_and_change_units_once() -> None:
    data = prepared(log(successors=False), needs={"next_actions"}, action_clip=0.45)
    assert data.store.columns["next_actions"] is data.store.columns["actions"]
    assert data.next_actions is not None
    np.testing.assert_allclose(data.next_actions[:, 0], [0.2, 0.3, 0.3, 0.45, 0.45], rtol=1e-6)
    two = prepared(log(successors=True), needs={"next_actions"}, n_step=2).next_actions
    assert two is not None
    np.testing.assert_allclose(two[:, 0], [0.3, 0.3, 0.3, 0.6, 0.6, 0.6], rtol=1e-6)


def test_discounts_and_returns_on_demand() -> None:
    data = prepared(log(successors=True), needs={"discounts", "returns_to_go"})
    assert data.discounts is not None and data.discounts.tolist() == [0.5] * 6
    assert data.returns_to_go is not None
    assert data.returns_to_go.tolist() == [0 + 0.5 * 1 + 0.25 * 2, 1 + 0.5 * 2, 2, 3 + 2 + 1.25, 4 + 2.5, 5]
    two = prepared(log(successors=True), needs={"discounts"}, n_step=2)
    assert two.discounts is not None and two.discounts.tolist() == [0.25, 0.25, 0.5, 0.25, 0.25, 0.5]
    assert set(prepared(log(successors=True), needs=set()).fields) == {
        *("obs", "actions", "rewards", "next_obs", "dones", "truncations")
    }


def test_an_unknown_need_fails_at_the_start() -> None:
    with pytest.raises(
        ConfigError, match="the learner needs the batch field 'heat', which is unknown; worked out"
    ):
        prepared(log(successors=True), needs={"heat"})
    with pytest.raises(
        ConfigError, match="needs the batch field 'behavior_logprobs', which data in memory does not"
    ):
        prepared(log(successors=True), needs={"behavior_logprobs"})
    assert {field.name for field in all_fields() if field.derive} == {
        "returns_to_go",
        "next_actions",
        "discounts",
        "episodes",
        "signal_states",
    }


def timed(**columns: Any) -> TransitionDataset:
    frame = {"t": [0.0, 1.0, 3.0, 4.0, 5.0], "x": [0.0] * 5, "u": [0.0, 1.0, 0.0, 1.0, 0.0]}
    frame |= {"r": [1.0] * 5, "e": [1] * 5}
    with pytest.warns(UserWarning, match="differ from the median step"):
        return TransitionDataset.from_dataframe(
            frame, observations="x", actions="u", reward="r", episode="e", time="t", **columns
        )


def test_discount_by_time_reaches_the_batches() -> None:
    data = timed()
    plain = prepared(data, needs=set())
    assert plain.discounts is None and "durations" not in plain.fields
    by_time = prepared(
        data, needs={"returns_to_go"}, dataset_kind="auto", dataset_path="x", discount_by_time=True
    )
    assert by_time.discounts is not None and by_time.discounts.tolist() == [0.5, 0.25, 0.5, 0.5]
    assert by_time.returns_to_go is not None
    # backwards from the last row, whose own reward and the dropped one give 1.5
    assert by_time.returns_to_go.tolist() == [1 + 0.5 * 1.4375, 1 + 0.25 * 1.75, 1.75, 1.5]
    with pytest.raises(DataError, match="discount_by_time needs the time of steps"):
        prepared(
            log(successors=True), needs=set(), dataset_kind="auto", dataset_path="x", discount_by_time=True
        )
    with pytest.raises(ConfigError, match="discount_by_time needs logged times"):
        OfflineDataFields(discount_by_time=True)


def test_held_out_episodes_are_whole_seeded_and_disjoint() -> None:
    data = TransitionDataset.from_log(as_log(episodes(LENGTHS, TERMINATED)))
    train, held = split_episodes(data, 0.4, seed=3)
    assert len(train) + len(held) == len(data)
    numbers = [set(part.obs[:, 0].tolist()) for part in (train, held)]
    assert not numbers[0] & numbers[1] and len(numbers[1]) == 2
    assert sorted([*train.episode_returns(), *held.episode_returns()]) == pytest.approx(
        sorted(data.episode_returns())
    )
    again, other = split_episodes(data, 0.4, seed=3)[1], split_episodes(data, 0.4, seed=5)[1]
    assert torch.equal(held.obs, again.obs) and not torch.equal(held.obs[:1], other.obs[:1])
    with pytest.raises(DataError, match="validation_share needs at least 2 episodes to hold one out, got 1"):
        split_episodes(TransitionDataset.from_log(as_log(episodes([4], [True]))), 0.5, seed=0)


def forty_episodes(**fields: list[int]) -> TransitionDataset:
    """Episodes of two rows that observe their number; a field says something of each."""
    rows = np.arange(80)
    obs = np.column_stack([rows // 2, rows % 2]).astype(np.float32)
    given = obs, np.zeros((80, 1)), np.zeros(80), obs, np.zeros(80)
    columns = {name: np.repeat(values, 2) for name, values in fields.items()}
    return TransitionDataset(*given, truncations=rows % 2, **columns)


def held_episodes(data: TransitionDataset, share: float) -> list[int]:
    train, held = split_episodes(data, share, seed=1)
    assert not set(train.obs[:, 0].tolist()) & set(held.obs[:, 0].tolist()) and len(train) + len(held) == 80
    return sorted(set(held.obs[:, 0].int().tolist()))


@pytest.mark.parametrize(
    ("count", "operators", "held"),
    [(2, 1, 1), (39, 1, 8), (40, 1, 20), (40, 3, 22), (61, 4, 21), (100, 1, 20), (103, 1, 21), (500, 3, 99)],
)
def test_a_judgement_gets_its_twenty_episodes_by_itself(count: int, operators: int, held: int) -> None:
    """A fifth of 100 and more; of fewer as many as are needed, of too few a fifth again."""
    rows = np.arange(count, dtype=np.float32)
    obs = np.column_stack([rows, rows])
    who = {} if operators == 1 else {"operators": rows % operators}
    data = TransitionDataset(obs, obs, rows, obs, np.zeros(count), truncations=np.ones(count), **who)
    learned, judged = split_episodes(data, "auto", seed=0)
    assert (len(learned), len(judged)) == (count - held, held)


def test_days_are_held_out_whole_and_of_every_operator_a_share() -> None:
    days = held_episodes(forty_episodes(days=[20000 + each // 4 for each in range(40)]), 0.2)
    assert len(days) == 8 and len({each // 4 for each in days}) == 2
    who = held_episodes(forty_episodes(operators=[each % 4 == 3 for each in range(40)]), 0.2)
    assert len(who) == 8 and sum(each % 4 == 3 for each in who) == 2
    long = held_episodes(forty_episodes(days=[max(0, each - 30) for each in range(40)]), 0.2)
    assert len(long) == 8 and min(long) > 30, "a day of 31 episodes is no fifth of 40"
    plain = held_episodes(forty_episodes(), 0.2)  # too few days, or each an episode: episodes are drawn
    assert held_episodes(forty_episodes(days=[each // 10 for each in range(40)]), 0.2) == plain
    assert held_episodes(forty_episodes(days=[*range(40)]), 0.2) == plain


def test_dated_rows_of_a_table_know_their_day() -> None:
    times = [f"2026-03-0{day}T{hour}:30:00" for day, hour in ((1, 22), (1, 23), (2, "00"), (2, "01"))]
    frame = {
        "x": [1.0, 2, 3, 4],
        "u": [0.0, 1, 0, 1],
        "r": [0.0, 0, 1, 1],
        "t": times,
        "s": [0, 60, 120, 180],
    }
    given: dict[str, Any] = {"observations": ["x"], "actions": ["u"], "reward": "r"}
    dated = TransitionDataset.from_dataframe(frame, **given, time="t")
    first = (date(2026, 3, 1) - date(1970, 1, 1)).days
    assert dated.store.whole("days").tolist() == [first, first, first + 1]
    counted = TransitionDataset.from_dataframe(frame, **given, time="s")
    assert "days" not in counted.fields


def test_held_out_rows_have_the_units_of_the_training_rows() -> None:
    """Statistics come from the training rows alone, and are applied once to both."""
    data = TransitionDataset.from_log(as_log(episodes(LENGTHS, TERMINATED, successors=False)))
    settings = OfflineDataFields(normalize_observations=True, validation_share=0.4, reward_scale=2.0)
    spaces = Spaces(3, (-2.0, -1.0), (2.0, 3.0))
    train, held = split_episodes(data, 0.4, seed=0)
    result = process_offline_dataset([data], settings, spaces, gamma=0.9, owned=True)
    assert result.validation is not None and result.normalizer is not None
    fresh = TransitionDataset.from_log(as_log(episodes(LENGTHS, TERMINATED, successors=False)))
    train, held = split_episodes(fresh, 0.4, seed=0)
    assert result.summary["validation_rows"] == len(held) and len(result.dataset) == len(train)
    np.testing.assert_allclose(result.normalizer.mean, train.obs.mean(dim=0), rtol=1e-5)
    np.testing.assert_allclose(result.validation.obs, result.normalizer.apply(held.obs), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.dataset.obs, result.normalizer.apply(train.obs), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(result.validation.rewards, held.rewards * 2.0, rtol=1e-6)
    np.testing.assert_allclose(
        result.validation.actions[:, 0], held.actions[:, 0] / 2.0, rtol=1e-5, atol=1e-6
    )


def no_reward(tmp_path: Path) -> dict[str, Any]:
    pytest.importorskip("pyarrow")
    path = tmp_path / "log.csv"
    path.write_text("e,x,u\n1,0,5\n1,1,6\n2,3,7\n2,4,9\n")
    columns = {"observations": ["x"], "actions": ["u"], "episode": "e"}
    return {"dataset_path": str(path), "columns": columns}


def test_a_log_without_rewards_is_for_bc_alone(tmp_path: Path) -> None:
    settings = {**no_reward(tmp_path), "action_low": [0.0], "action_high": [10.0]}
    rows = build_offline_dataset(TrainConfig(algo="bc", total_timesteps=1, algo_kwargs=settings)).dataset
    assert rows.rewards.tolist() == [0, 0]
    with pytest.raises(
        DataError, match=r"log.csv: has no reward, which iql learns from; map one .*or train bc"
    ):
        build_offline_dataset(TrainConfig(algo="iql", total_timesteps=1, algo_kwargs=settings))


def test_bounds_from_the_data_and_advice_where_none_are_known(tmp_path: Path) -> None:
    settings = no_reward(tmp_path)
    with pytest.raises(ConfigError, match=r"the data spans \[5\] to \[9\]"):
        infer_env_spaces(TrainConfig(algo="bc", total_timesteps=1, algo_kwargs=settings))
    config = TrainConfig(algo="bc", total_timesteps=1, algo_kwargs={**settings, "action_bounds": "data"})
    assert infer_env_spaces(config) == Spaces(1, (5.0,), (9.0,))
    (tmp_path / "log.csv").write_text("e,x,u,v\n1,0,5,0\n1,1,5,1\n")
    kwargs = dict(config.algo_kwargs)
    kwargs["columns"] = {**kwargs["columns"], "actions": ["v", "u"]}
    with pytest.raises(DataError, match="u is 5 in every row, so its bounds cannot come from the data"):
        infer_env_spaces(TrainConfig(algo="bc", total_timesteps=1, algo_kwargs=kwargs))


def test_an_environment_that_a_file_names_is_not_imported(tmp_path: Path) -> None:
    (tmp_path / "trap.py").write_text("raise SystemExit('imported')")
    for name in ("trap:Env-v0", "Unknown-v9"):
        columns = episodes([4, 4], [True, False])
        np.savez(tmp_path / "a.npz", **columns, env_id=np.asarray(name))  # type: ignore[arg-type]
        config = TrainConfig(
            algo="bc", total_timesteps=1, algo_kwargs={"dataset_path": str(tmp_path / "a.npz")}
        )
        with pytest.raises(
            ConfigError, match=f"names the environment '{name}', which is not registered here"
        ):
            infer_env_spaces(config)


def short_episodes(count: int) -> TransitionDataset:
    """Episodes of two rows each."""
    rows = 2 * count
    dones = (np.arange(rows) % 2).astype(np.float32)
    obs = np.zeros((rows, 1), np.float32)
    return TransitionDataset(obs, obs, np.ones(rows, np.float32), obs, dones)


@pytest.mark.parametrize(("episodes", "held_out"), [(40, True), (38, False)])
def test_twenty_held_out_episodes_are_enough_for_a_judgement(episodes: int, held_out: bool) -> None:
    """Half of 40 are 20, half of 38 are 19: then all of them are judged by."""
    found = logged_episodes([short_episodes(episodes)], OfflineFields(validation_share=0.5), [False])
    assert found.held_out == held_out
    assert len(found.dataset) == 2 * (20 if held_out else 38)


@pytest.mark.parametrize(("rows", "kept"), [(10, 10), (11, 10), (9, 8), (1, 2)])
def test_a_judgement_takes_whole_episodes_up_to_its_rows(rows: int, kept: int) -> None:
    found = logged_episodes([short_episodes(30)], OfflineFields(judge_rows=rows), [False])
    assert len(found.dataset) == kept


def test_the_best_episodes_are_never_more_than_their_share() -> None:
    """Half of three is one: the one with the highest return."""
    data = short_episodes(3)
    rewards = torch.tensor([1.0, 1.0, 5.0, 5.0, 3.0, 3.0])
    best = best_episodes(data.with_columns({"rewards": rewards}), 0.5)
    assert best.rewards.tolist() == [5.0, 5.0]


def test_held_out_episodes_are_not_chosen_by_their_return() -> None:
    settings = OfflineDataFields(validation_share=0.5, top_fraction=0.25)
    found = process_offline_dataset([short_episodes(8)], settings, SPACES, gamma=0.5)
    assert found.validation is not None
    assert (len(found.dataset), len(found.validation)) == (2, 8)  # the best of four, and all other four
