"""Costs: declared, computed, told by environments; limits as they are written; penalties in batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import TransitionDataset
from rl_training.algorithms.recipe import get_recipe
from rl_training.cli.options import table_fields, with_column_options
from rl_training.config.data import OfflineDataFields, TableFields
from rl_training.config.limits import Limit, check_limits
from rl_training.core.errors import ConfigError, DataError
from rl_training.core.spaces import Spaces
from rl_training.data import load_transition_dataset, mix_transition_datasets
from rl_training.data.convert import read_location, target_location, write_location
from rl_training.data.prepare import PreparedDataset, process_offline_dataset
from rl_training.data.reading import DataWarning
from rl_training.runtime.collect import Collector
from rl_training.runtime.replay import StepRows, Units, told_fields

COLUMNS = {"observations": ["T"], "actions": ["u"], "reward": "r", "episode": "run"}
TABLE = {
    "T": [78.0, 81.0, 85.0, 79.0, 70.0, 90.0, 60.0, 61.0],
    "u": [0.0, 0.5, 1.0, 0.0, 0.5, 1.0, 0.0, 0.5],
    "r": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0],
    "run": [0, 0, 0, 0, 1, 1, 1, 1],
    "alarm": [0.0, 0.0, 2.0, 0.0, 0.0, 1.0, 0.0, 0.5],
}
COSTS = {"overheat": "T > 80", "alarms": "alarm", "shock": "abs(diff(u))"}
KEPT = [0, 1, 2, 4, 5, 6]  # the last row of an episode has no successor


def of_table(costs: dict[str, str] | None = None, **fields: Any) -> TransitionDataset:
    return TransitionDataset.from_dataframe(
        TABLE, **COLUMNS, costs=COSTS if costs is None else costs, **fields
    )


def prepared(*parts: TransitionDataset, **settings: Any) -> PreparedDataset:
    built = OfflineDataFields.build({"dataset_kind": "random", **settings})
    needs = frozenset(settings.pop("needs", ()))
    return process_offline_dataset(
        parts, built, Spaces(1, (0.0,), (1.0,)), gamma=0.5, needs=needs, owned=False
    )


def test_costs_of_a_table_are_columns_and_formulas() -> None:
    data = of_table()
    assert data.cost_names == ("overheat", "alarms", "shock")
    first = 3.5 / 8  # before an episode an action was the mean of all
    expected = [[0, 0, first], [1, 0, 0.5], [1, 2, 0.5], [0, 0, 0.5 - first], [1, 1, 0.5], [0, 0, 1.0]]
    np.testing.assert_allclose(data.store.whole("costs"), expected)
    batch = prepared(data).dataset.sample(4)
    assert "costs" not in batch  # only where a learner needs them
    learned = process_offline_dataset(
        [data], OfflineDataFields(), Spaces(1, (0.0,), (1.0,)), gamma=0.5, needs=frozenset({"costs"})
    )
    assert learned.dataset.sample(4)["costs"].shape == (4, 3)
    assert learned.dataset.cost_names == data.cost_names


def test_a_cost_may_look_at_the_next_row() -> None:
    assert of_table({"soon": "next(T) > 80"}).store.whole("costs").tolist() == [[1], [1], [0], [1], [0], [0]]


@pytest.mark.parametrize("suffix", [".npz", ".parquet", ".csv", ".hdf5"])
def test_costs_are_written_and_read_back(tmp_path: Path, suffix: str) -> None:
    place = target_location(str(tmp_path / f"log{suffix}"))
    given = TransitionDataset.from_dict(
        {**arrays(), "costs": np.arange(12.0).reshape(6, 2)}, cost_names=("heat", "noise")
    )
    write_location(given_log(), place)
    again = TransitionDataset.from_log(read_location(place))
    assert again.cost_names == (("cost_0", "cost_1") if suffix == ".csv" else given.cost_names)
    np.testing.assert_array_equal(again.store.whole("costs"), given.store.whole("costs"))


def arrays() -> dict[str, Any]:
    """Six steps; what is seen counts from 0."""
    obs = np.arange(6.0)[:, None]
    return {
        "obs": obs,
        "next_obs": obs + 1,
        "actions": np.tile([[0.0], [1.0]], (3, 1)),
        "rewards": np.arange(6.0),
        "terminals": np.zeros(6),
        "timeouts": np.arange(6) % 3 == 2,
    }


def given_log() -> Any:
    from rl_training.data.info import DataInfo
    from rl_training.data.log import EpisodeLog

    values = {**arrays(), "costs": np.arange(12.0).reshape(6, 2)}
    return EpisodeLog.from_arrays(values, info=DataInfo(cost_names=("heat", "noise")))


@pytest.mark.parametrize("in_memory", [True, False])
def test_costs_of_arrays_are_formulas_over_what_is_seen_and_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    np.savez(tmp_path / "log.npz", **{**arrays(), "costs": np.arange(6.0)})
    costs = {"far": "obs_0 > 3", "told": "2 * cost", "reversed": "-reward", "was": "lag(action_0)"}
    for _ in range(2):  # written to the cache, then read from it
        data = load_transition_dataset(tmp_path / "log.npz", costs=costs, in_memory=in_memory)
        assert data.cost_names == tuple(costs)
        expected = [(row > 3, 2 * row, -row, 0.5 if row % 3 == 0 else (row - 1) % 2) for row in range(6)]
        np.testing.assert_allclose(data.store.whole("costs"), np.array(expected, dtype=float))


def test_names_of_costs() -> None:
    assert TransitionDataset.from_dict(arrays()).cost_names == ()
    one = TransitionDataset.from_dict({**arrays(), "costs": np.zeros(6)})
    assert one.cost_names == ("cost",) and one.sample(2)["costs"].shape == (2, 1)
    assert one.with_costs({"far": "obs_0 > 3"}).cost_names == ("far",)
    assert TransitionDataset(
        **{**{key: arrays()[key] for key in ("obs", "actions", "rewards", "next_obs")}, "dones": np.zeros(6)},
        costs=np.zeros((6, 2)),
    ).cost_names == ("cost_0", "cost_1")
    with pytest.raises(DataError, match="cost_names must have 1 names, one per cost, got 2"):
        TransitionDataset.from_dict({**arrays(), "costs": np.zeros(6)}, cost_names=("a", "b"))
    with pytest.raises(DataError, match="costs"):
        TransitionDataset.from_dict({**arrays(), "costs": [0, 1, 2, np.nan, 4, 5]})
    other = TransitionDataset.from_dict({**arrays(), "costs": np.zeros(6)}, cost_names=("heat",))
    with pytest.raises(DataError, match="parts of a mix must have the same costs"):
        mix_transition_datasets([one.with_costs({"far": "obs_0 > 3"}), other])
    assert mix_transition_datasets([other, other]).cost_names == ("heat",)


def test_an_environment_tells_its_cost() -> None:
    from fake_world import World
    from rl_training.runtime.record import Rollout, collect_in_memory

    with Rollout(World().make, {}, 0) as rollout:
        data = TransitionDataset.from_log(collect_in_memory(rollout, 6, "world"))
    assert data.store.whole("costs").tolist() == [[1], [2], [3], [1], [2], [3]]
    assert data.with_costs({"late": "cost > 2"}).store.whole("costs")[:, 0].tolist() == [0, 0, 1, 0, 0, 1]


def test_a_penalty_is_taken_off_rewards_that_are_learned_from() -> None:
    """N23, before the scale of rewards; what is told of the data stays."""
    values = arrays()
    values["rewards"] = np.tile([1.0, 2.0], 3)
    data = TransitionDataset.from_dict({**values, "costs": np.tile([0.0, 0.5], 3)}, cost_names=("heat",))
    plain, paid = prepared(data), prepared(data, penalty={"heat": 3.0})
    assert paid.dataset.rewards.tolist() == [1.0, 0.5] * 3
    assert paid.summary["return_mean"] == plain.summary["return_mean"] == 4.5
    assert data.rewards.tolist() == [1.0, 2.0] * 3
    scaled = prepared(data, penalty={"heat": 3.0}, reward_scale=2.0, reward_shift=1.0)
    assert scaled.dataset.rewards.tolist() == [3.0, 2.0] * 3
    assert prepared(data, penalty={"heat": 0.0}).dataset.rewards.tolist() == [1.0, 2.0] * 3


def test_a_learner_may_keep_rewards_and_penalties_apart() -> None:
    values = {**arrays(), "rewards": np.tile([1.0, 2.0], 3), "costs": np.tile([0.0, 0.5], 3)}
    data = TransitionDataset.from_dict(values, cost_names=("heat",))
    found = process_offline_dataset(
        [data],
        OfflineDataFields.build({"penalty": {"heat": 3.0}, "reward_scale": 2.0, "reward_shift": 1.0}),
        Spaces(1, (-1.0,), (1.0,)),
        gamma=0.9,
        needs=frozenset({"penalties"}),
        owned=False,
    )
    assert found.dataset.rewards.tolist() == [3.0, 5.0] * 3  # not taken off here
    assert found.dataset.store.whole("penalties").tolist() == [0.0, 3.0] * 3  # 2 * 3 * (0, .5)
    recipe = get_recipe("lion")
    for penalty, needs in (({}, {"episodes"}), ({"heat": 3.0}, {"episodes", "penalties"})):
        assert recipe.needs(recipe.settings.build({"penalty": penalty})) == needs
    assert "penalties" not in get_recipe("iql").needs(
        get_recipe("iql").settings.build({"penalty": {"h": 1.0}})
    )


def test_returns_to_go_are_those_of_what_is_learned_from() -> None:
    """The row that was dropped for want of a successor pays too."""
    data = of_table({"heat": "T > 75", "rest": "0"})
    process = {"settings": OfflineDataFields.build({"penalty": {"heat": 2.0}}), "gamma": 1.0}
    learned = process_offline_dataset(
        [data], spaces=Spaces(1, (0.0,), (1.0,)), needs=frozenset({"returns_to_go"}), owned=False, **process
    )
    # 1 - 2, 2 - 2, 3 - 2, 4 - 2 and 5, 6 - 2, 7, 8
    assert learned.dataset.store.whole("returns_to_go").tolist() == [2, 3, 3, 24, 19, 15]
    assert data.episode_returns().tolist() == [10, 26]


def test_collected_rewards_pay_the_same_penalty() -> None:
    from fake_world import World

    units, rows = Units(rewards=prepared_identity(), penalty=(3.0,)), ("obs", "rewards")
    with Collector(World().make, {}, 2, 0, fields=told_fields({"costs"})) as collector:
        step = collector.step(np.zeros((2, 1), dtype=np.float32))
    kept = units.columns_of(step, rows)
    assert kept.keys() == {"obs", "rewards"}
    np.testing.assert_allclose(kept["rewards"], step.rewards - 3.0)
    doubled = replace(units, rewards=prepared_identity(2.0)).columns_of(step, rows)
    np.testing.assert_allclose(doubled["rewards"], 2.0 * (step.rewards - 3.0))
    assert (
        StepRows(4, Spaces(3, (-2.0,), (2.0,)), 1, kept_device(), frozenset({"costs"})).fields[-1] == "costs"
    )


def test_collected_episodes_say_what_they_cost() -> None:
    """Steps of the world cost 1, 2 and 3; an episode in its middle goes on with what it has cost."""
    from fake_world import World

    world = World()
    still = np.zeros((2, 1), dtype=np.float32)
    with Collector(world.make, {}, 2, 0, fields=told_fields({"costs"})) as collector:
        ended = [collector.step(still).episodes for _ in range(4)]
        assert [[each.cost for each in episodes] for episodes in ended] == [[], [], [6.0, 6.0], []]
        state = collector.state_dict()
        assert state["costs"] == [1.0, 1.0]
    with Collector(world.make, {}, 2, 0, fields=told_fields({"costs"})) as other:
        other.load_state_dict(state)
        assert [each.cost for _ in range(2) for each in other.step(still).episodes] == [6.0, 6.0]
    with Collector(World().make, {}, 1, 0) as plain:
        assert [each.cost for _ in range(3) for each in plain.step(still[:1]).episodes] == [None]


def prepared_identity(scale: float = 1.0) -> Any:
    from rl_training.core.transforms import RewardTransform

    return RewardTransform(scale, 0.0, None)


def kept_device() -> Any:
    import torch

    return torch.device("cpu")


@pytest.mark.filterwarnings("ignore:limits.warm is")
def test_only_episodes_within_limits_are_learned_from() -> None:
    """The row that was dropped for want of a successor counts, in the sum and in the mean over four steps."""
    data = of_table({"heat": "T > 80", "warm": "T > 75", "alarms": "alarm"})
    totals, steps = data.episode_costs()
    assert totals.tolist() == [[2, 4, 2], [1, 1, 1.5]] and steps.tolist() == [4, 4]
    for limits, kept in (
        ({"heat": 0.3}, [5, 6, 7]),
        ({"warm": "3 per episode"}, [5, 6, 7]),
        ({"warm": "4 per episode"}, [1, 2, 3, 5, 6, 7]),
        ({"warm": 1.0, "heat": "1 per episode"}, [5, 6, 7]),
        ({"alarms": 0.375}, [5, 6, 7]),  # on the limit: kept
    ):
        chosen = prepared(data, limits=limits, episodes_within_limits=True)
        assert chosen.dataset.rewards.tolist() == kept
        assert prepared(data, limits=limits).dataset.rewards.tolist() == [1, 2, 3, 5, 6, 7]
    best = prepared(data, limits={"warm": 1.0}, episodes_within_limits=True, top_fraction=0.5)
    assert best.dataset.rewards.tolist() == [5, 6, 7]  # the best of those that are left
    with pytest.raises(
        DataError, match=r"no episode kept the limit of warm, 0.1 per step: the least was 0.25"
    ):
        prepared(data, limits={"warm": 0.1}, episodes_within_limits=True)
    split = of_table({"early": "T > 77 and T < 85", "late": "T > 85"})
    with pytest.raises(DataError, match="no episode kept all limits at once"):
        prepared(split, limits={"early": 0.1, "late": 0.1}, episodes_within_limits=True)
    with pytest.raises(ConfigError, match="episodes_within_limits needs limits"):
        OfflineDataFields.build({"episodes_within_limits": True})


def test_limits_are_per_step_or_per_episode() -> None:
    settings = TableFields.build({"limits": {"heat": 0.01, "shock": "3 per episode", "noise": "2 per step"}})
    assert settings.stated_limits == (
        Limit("heat", 0.01),
        Limit("shock", 3.0, "episode"),
        Limit("noise", 2.0),
    )
    assert [str(each) for each in settings.stated_limits] == ["0.01 per step", "3 per episode", "2 per step"]


@pytest.mark.parametrize("written", ["3 per hour", "often", "", "nan per step", float("inf"), "1 2", True])
def test_a_limit_that_is_none_is_refused(written: object) -> None:
    with pytest.raises(ConfigError, match="limit"):
        TableFields.build({"limits": {"heat": written}})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"penalty": {"heat": -1.0}}, "penalty of heat must be >= 0, got -1"),
        (
            {"penalty": {"overhet": 1.0}},
            r"penalty names 'overhet', which is no cost of .*did you mean 'overheat'",
        ),
        (
            {"limits": {"noise": 1.0}},
            "limits names 'noise', which is no cost of .*; there are overheat, alarms",
        ),
    ],
)
def test_what_is_of_no_cost_is_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        prepared(of_table(), **settings)


def test_a_limit_below_nothing_is_refused_and_one_that_nothing_breaks_is_told() -> None:
    """Costs of 0 or 1 in every step: -0.1 is never kept, 1 per step and 100 per episode never broken."""
    rows = np.array([[0.0, -2.0], [1.0, 3.0], [1.0, 0.0], [0.0, 1.0]])
    steps = np.array([3, 1])

    def told(name: str, value: object) -> list[str]:
        return check_limits([Limit.parse(name, value)], ("hot", "gain"), rows, steps, "a log")

    assert told("hot", 0.0) == told("hot", 0.99) == told("hot", "2 per episode") == told("gain", -1.0) == []
    (words,) = told("hot", 1.0)
    assert "limits.hot is 1 per step, and no step costs more than 1: nothing like this log can" in words
    assert told("hot", "3 per episode") and told("gain", "9 per episode")
    with pytest.raises(ConfigError, match=r"limits.hot must be >= 0, got -0.1 per step; no step of a log"):
        told("hot", -0.1)
    with pytest.raises(ConfigError, match="limits names 'cold', which is no cost of a log"):
        told("cold", 0.1)
    with pytest.warns(DataWarning, match=r"limits.warm is 7 per step"):
        prepared(of_table({"warm": "T > 79"}), limits={"warm": 7.0})
    with pytest.raises(ConfigError, match=r"limits.warm must be >= 0"):
        prepared(of_table({"warm": "T > 79"}), limits={"warm": -1.0})


def test_without_costs_nothing_can_be_limited() -> None:
    plain = of_table({})
    with pytest.raises(ConfigError, match="no cost is declared; declare it: --cost 'heat: …'"):
        prepared(plain, limits={"heat": 1.0})
    with pytest.raises(ConfigError, match=r"penalty needs the batch field 'costs', which .* does not have"):
        prepared(plain, penalty={"heat": 1.0})


@pytest.mark.parametrize(
    ("costs", "told"),
    [
        ({"heat": "T_tank > 80"}, "T_tank"),
        ({"heat": "log(T - 78)"}, "gives no number"),
        ({"heat": "T > 80, u"}, "cost heat must be one expression, got 2"),
    ],
)
def test_a_cost_that_cannot_be_computed_is_refused(costs: dict[str, str], told: str) -> None:
    with pytest.raises(DataError, match=told):
        of_table(costs)


def test_options_of_the_command_line() -> None:
    given: dict[str, Any] = {}

    def command(fields: dict[str, Any]) -> None:
        given.update(fields)

    with_column_options(command)(
        **{**nothing(), "cost": ["overheat: T > 80", "b:c"], "limit": ["overheat: 3 per episode"]}
    )
    assert given == {"costs": {"overheat": "T > 80", "b": "c"}, "limits": {"overheat": "3 per episode"}}
    for option, text in (("cost", "T > 80"), ("limit", "0.01"), ("limit", "overheat:")):
        with pytest.raises(ConfigError, match=f"--{option} must be NAME: VALUE, such as"):
            table_fields({**nothing(), option: [text]})
    with pytest.raises(ConfigError, match="--limit a is given twice"):
        table_fields({**nothing(), "limit": ["a: 1", "a: 2"]})


def nothing() -> dict[str, Any]:
    import inspect

    def command(fields: dict[str, Any]) -> None: ...

    return dict.fromkeys(inspect.signature(with_column_options(command)).parameters)
