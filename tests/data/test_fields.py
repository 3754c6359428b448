"""Fields registered outside the package, from a table and from infos, up to a learner that needs them."""

import csv
from dataclasses import replace
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch

import rl_training
from rl_training import Field, TransitionDataset
from rl_training.algorithms.learner import Batch, Learner, MetricTensors, Noise
from rl_training.algorithms.recipe import get_recipe
from rl_training.config.data import OfflineDataFields
from rl_training.config.run import TrainConfig
from rl_training.core.errors import ConfigError, DataError, EnvironmentProblem, RunFailed
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import RewardTransform
from rl_training.data import ReplayBuffer, load_transition_dataset, mix_transition_datasets
from rl_training.data.convert import read_location, target_location, write_location
from rl_training.data.fields import FIELDS, Discounting, register_field
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.prepare import process_offline_dataset
from rl_training.runs.resume import resume_training
from rl_training.runs.tracking import read_metrics
from rl_training.runs.train import train
from rl_training.runtime.collect import Collector
from rl_training.runtime.offline_data import build_offline_dataset
from rl_training.runtime.record import CollectionRequest, Rollout, collect_in_memory, collect_to
from rl_training.runtime.replay import EpisodeRows, StepRows, Units

ENERGY = Field("energy", names=("energy", "kwh"), from_info="kwh")
FORCES = Field("forces", "vector", from_info="force", width=2)
ALARM = Field("alarm", "flag")
WIND = Field("wind")
BONUS = Field("bonus", follows_rewards=True)


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fields of this file, for as long as one of its tests runs."""
    for entries in ("_parts", "_packages"):
        monkeypatch.setattr(FIELDS, entries, dict(getattr(FIELDS, entries)))
    for field in (ENERGY, FORCES, ALARM, BONUS):
        rl_training.register_field(field)


class Plant(gym.Env[Any, Any]):
    """A counter whose `info` tells an energy of ten times the steps, and two forces."""

    observation_space = gym.spaces.Box(-100.0, 100.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, 1.0, (1,), np.float32)

    def __init__(self, silent_after: int = 1_000_000) -> None:
        self.time, self.silent_after = 0, silent_after

    def _seen(self) -> Any:
        return np.array([self.time, -self.time], dtype=np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.time = 0
        return self._seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.time += 1
        info: dict[str, Any] = {"force": [self.time, 2.0 * self.time], "unasked": "x"}
        if self.time <= self.silent_after:
            info["kwh"] = 10.0 * self.time
        return self._seen(), 1.0, False, self.time == 5, info


gym.register("FieldsPlant-v0", Plant)


def write_table(path: Path, column: str = "kwh", rows: int = 12) -> Path:
    """Two episodes; the energy of row i is i / 2, the alarm sounds in every third row."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["x", "u", "reward", "episode", column, "forces_0", "forces_1", "alarm"])
        for row in range(rows):
            table.writerow(
                [row, (row % 5) / 5, 1.0, row // 6, row / 2, row, -row, "yes" if row % 3 == 0 else "no"]
            )
    return path


def of_table(path: Path, **fields: Any) -> TransitionDataset:
    columns = {"observations": ["x"], "actions": ["u"], **fields.pop("columns", {})}
    return load_transition_dataset(path, columns=columns, **fields)


def energy(data: TransitionDataset) -> list[float]:
    return list(data.store.whole("energy").tolist())


KEPT = [row for row in range(12) if row not in (5, 11)]  # the last row of an episode has no successor


@pytest.mark.parametrize("in_memory", [True, False])
def test_a_column_of_a_table_reaches_the_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    for _ in range(2):  # written to the cache, then read from it
        data = of_table(write_table(tmp_path / "log.csv"), in_memory=in_memory)
        assert energy(data) == [row / 2 for row in KEPT]
        assert data.store.whole("forces").tolist() == [[row, -row] for row in KEPT]
        assert data.store.whole("alarm").tolist() == [float(row % 3 == 0) for row in KEPT]


def test_the_cache_is_not_asked_for_a_field_that_was_declared_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    path = write_table(tmp_path / "log.csv")
    known = FIELDS._parts.pop("energy")
    assert "energy" not in of_table(path, in_memory=False).fields
    register_field(known)
    assert "energy" in of_table(path, in_memory=False).fields


def test_a_column_of_any_name_is_mapped(tmp_path: Path) -> None:
    path = write_table(tmp_path / "log.csv", column="overheat")
    assert "energy" not in of_table(path).fields
    assert energy(of_table(path, columns={"fields": {"energy": "overheat"}})) == [row / 2 for row in KEPT]
    with pytest.raises(DataError, match=r"columns\.fields: no field is called 'enrgy'.*energy"):
        of_table(path, columns={"fields": {"enrgy": "overheat"}})


@pytest.mark.parametrize("ending", ["hdf5", "npz", "parquet", "feather", "csv", "jsonl"])
def test_every_format_writes_and_reads_it(tmp_path: Path, ending: str) -> None:
    given = arrays(energy=np.arange(6.0), alarm=[0, 1, 0, 0, 1, 1])
    log = EpisodeLog.from_arrays(given, info=DataInfo())
    place = target_location(str(tmp_path / f"log.{ending}"))
    write_location(log, place)
    again = TransitionDataset.from_log(read_location(place))
    assert energy(again) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert again.store.whole("alarm").tolist() == [0, 1, 0, 0, 1, 1]


def test_minari_keeps_it_too(tmp_path: Path) -> None:
    pytest.importorskip("minari")
    log = collect_in_memory(Rollout("FieldsPlant-v0", {}, 0), 10, "plant")
    log = replace(log, info=replace(log.info, env_id=None))  # Minari writes no environment that is a class
    place = target_location("minari:toy-v0", tmp_path)
    write_location(log, place)
    again = read_location(place)
    np.testing.assert_array_equal(again.further["energy"], log.further["energy"])
    np.testing.assert_array_equal(again.further["forces"], log.further["forces"])


def arrays(**more: Any) -> dict[str, Any]:
    return {
        "obs": np.arange(6.0)[:, None],
        "actions": np.linspace(-0.5, 0.5, 6)[:, None],
        "rewards": np.ones(6),
        "next_obs": np.arange(1.0, 7.0)[:, None],
        "terminals": [0, 0, 1, 0, 0, 1],
        **more,
    }


def test_what_nobody_declared_is_refused_and_not_lost() -> None:
    with pytest.raises(DataError, match=r"no field is called 'enregy'.*energy"):
        TransitionDataset.from_dict(arrays(enregy=np.zeros(6)))
    data = TransitionDataset.from_dict(arrays(kwh=np.arange(6.0)))
    assert energy(data) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DataError, match="no field is called 'enregy'"):
        data.with_columns({"enregy": torch.zeros(6)})
    plain = [data.obs, data.actions, data.rewards, data.next_obs, data.dones]
    assert energy(TransitionDataset(*plain, energy=np.arange(6.0)[:, None])) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DataError, match="no field is called 'enregy'"):
        TransitionDataset(*plain, enregy=np.arange(6.0))


def test_declarations_that_contradict_are_refused() -> None:
    with pytest.raises(ConfigError, match="field 'energy' exists already"):
        register_field(Field("energy", "vector"))
    with pytest.raises(ConfigError, match="'price' cannot go by 'reward' in files: 'rewards' does"):
        register_field(Field("price", names=("reward",)))
    with pytest.raises(ConfigError, match="from_info needs the width of a vector"):
        Field("wind", "vector", from_info="wind")
    with pytest.raises(DataError, match="register_field needs a Field, got str"):
        register_field("energy")  # type: ignore[arg-type]


def test_a_package_offers_a_field(monkeypatch: pytest.MonkeyPatch) -> None:
    offer = EntryPoint("wind", "test_fields:WIND", "rl_training.fields")
    monkeypatch.setattr("rl_training.core.registry.entry_points_on", lambda path, group: (offer,))
    data = TransitionDataset.from_dict(arrays(wind=np.arange(6.0)))
    assert data.store.whole("wind").tolist() == [0, 1, 2, 3, 4, 5]


def prepared(parts: list[TransitionDataset], needs: set[str], **settings: Any) -> TransitionDataset:
    fields = OfflineDataFields(**settings)
    return process_offline_dataset(
        parts, fields, Spaces(1, (-1.0,), (1.0,)), gamma=0.9, needs=frozenset(needs)
    ).dataset


def test_mixing_and_batches_of_those_who_need_it(tmp_path: Path) -> None:
    parts = [of_table(write_table(tmp_path / "a.csv")), of_table(write_table(tmp_path / "b.csv", rows=6))]
    mixed = mix_transition_datasets(parts)
    assert sorted(energy(mixed)) == sorted(energy(parts[0]) + energy(parts[1]))
    needed, plain = prepared(parts, {"energy"}), prepared(parts, set())
    assert "energy" in needed.fields and "energy" not in plain.fields
    batch = needed.sample(64)
    assert torch.equal(batch["energy"], batch["obs"][:, 0] / 2)  # the fields of a row stay together
    with pytest.raises(ConfigError, match=r"needs the batch field 'energy', which .* does not have"):
        prepared([TransitionDataset.from_dict(arrays())], {"energy"})


def test_a_field_in_units_of_the_reward_follows_its_scale() -> None:
    data = TransitionDataset.from_dict(arrays(bonus=np.arange(6.0), energy=np.arange(6.0)))
    scaled = prepared([data], {"bonus", "energy"}, reward_scale=3.0)
    assert scaled.store.whole("bonus").tolist() == [0, 3, 6, 9, 12, 15]
    assert energy(scaled) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(DataError, match=r"the bonus of this dataset .* shifted or clipped rewards"):
        prepared([data], {"bonus"}, reward_shift=1.0)


def test_a_field_that_is_derived_follows_the_new_rewards() -> None:
    def with_doubles(data: TransitionDataset, how: Discounting) -> TransitionDataset:
        return data.with_columns({"doubles": 2.0 * data.rewards})

    register_field(Field("doubles", derive=with_doubles, follows_rewards=True))
    data = TransitionDataset.from_dict(arrays(doubles=np.arange(6.0)))
    assert prepared([data], {"doubles"}, reward_shift=1.0).store.whole("doubles").tolist() == [4.0] * 6
    plain = TransitionDataset.from_dict(arrays())
    assert prepared([plain], {"doubles"}).store.whole("doubles").tolist() == [2.0] * 6


def test_returns_of_the_data_are_computed_anew_also_where_no_learner_asks() -> None:
    data = TransitionDataset.from_dict(arrays(returns_to_go=np.full(6, 99.0)))
    returns = prepared([data], set()).store.whole("returns_to_go").tolist()
    assert returns == pytest.approx([2.71, 1.9, 1.0] * 2)


@pytest.mark.parametrize("async_envs", [False, True])
def test_the_infos_of_environments_are_kept_for_who_asks(async_envs: bool) -> None:
    with Collector("FieldsPlant-v0", {}, 2, 0, fields=(ENERGY, FORCES), async_envs=async_envs) as collector:
        steps = [collector.step() for _ in range(6)]
    assert [step.fields["energy"].tolist() for step in steps] == [[10.0 * t] * 2 for t in (1, 2, 3, 4, 5, 1)]
    assert steps[1].fields["forces"].tolist() == [[2.0, 4.0]] * 2
    with Collector("FieldsPlant-v0", {}, 2, 0) as collector:
        assert collector.step().fields == {}


def test_an_environment_that_stops_telling_is_named() -> None:
    with Collector("FieldsPlant-v0", {"silent_after": 2}, 1, 0, fields=(ENERGY,)) as collector:
        collector.step()
        collector.step()
        with pytest.raises(EnvironmentProblem, match=r"step 3\).* returned no info\['kwh'\], which"):
            collector.step()


def test_collected_data_has_it(tmp_path: Path) -> None:
    config = TrainConfig(
        algo="bc", env_id="FieldsPlant-v0", total_timesteps=1, algo_kwargs={"dataset_size": 8}
    )
    data = build_offline_dataset(config, needs=frozenset({"energy"})).dataset
    assert energy(data) == [10, 20, 30, 40, 50, 10, 20, 30]
    place = target_location(str(tmp_path / "collected.npz"))
    collect_to(place, CollectionRequest("FieldsPlant-v0", 8))
    assert read_location(place).further["forces"].tolist() == [[t, 2 * t] for t in (1, 2, 3, 4, 5, 1, 2, 3)]


@pytest.mark.parametrize("whole_episodes", [False, True])
def test_replay_holds_it_and_restores_it(whole_episodes: bool) -> None:
    spaces, device = Spaces(2, (-1.0,), (1.0,)), torch.device("cpu")

    def store() -> StepRows | EpisodeRows:
        needs = frozenset({"energy", "forces", "discounts"})
        if not whole_episodes:
            return StepRows(20, spaces, 1, device, needs)
        return EpisodeRows(20, spaces, 1, 1, device, gamma=0.9, failure_reward=None, needs=needs)

    rows, units = store(), Units(RewardTransform())
    with Collector("FieldsPlant-v0", {}, 1, 0, fields=(ENERGY, FORCES)) as collector:
        for _ in range(7):
            step = collector.step()
            rows.add([units.columns(step)], [step.terminated | step.truncated])
    again = store()
    again.load_state_dict(rows.state_dict(None))
    again.cut()
    held = again.parts[0].gather(torch.arange(7))
    assert held["energy"].tolist() == [10, 20, 30, 40, 50, 10, 20]
    assert held["forces"].tolist() == [[t, 2 * t] for t in (1, 2, 3, 4, 5, 1, 2)]


def test_a_row_without_a_field_that_is_held_is_refused() -> None:
    rows = {"obs": np.zeros((1, 2)), "actions": np.zeros((1, 1)), "rewards": np.zeros(1)}
    rows |= {"next_obs": np.zeros((1, 2)), "dones": np.zeros(1)}
    with pytest.raises(ValueError, match="a row needs the field energy, got obs, actions"):
        ReplayBuffer(4, 2, 1, extra=["energy"]).add(**rows)


def costly(base: type[Learner]) -> type[Learner]:
    """An algorithm that needs the costs and tells how far those of a batch are from what they must be."""

    class Costly(base):  # type: ignore[misc, valid-type]
        needs = frozenset({"energy"})

        def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
            metrics: MetricTensors = super().step(batch, noise, stage)
            error = (batch["energy"] - 10.0 * batch["next_obs"][..., 0]).abs().amax(-1)
            return {**metrics, "cost_error": error, "cost_mean": batch["energy"].mean(-1)}

    return Costly


@pytest.fixture
def algorithms() -> None:
    """`costly_sac` and `costly_bc`."""
    for recipe in (get_recipe("sac"), get_recipe("bc")):
        own = replace(recipe, name=f"costly_{recipe.name}", learner=costly(recipe.learner))
        rl_training.register_algorithm(own)


SMALL = {"hidden_sizes": [8], "batch_size": 16, "compile": False}


def costs_of_batches(run_dir: Path) -> list[float]:
    rows = [row for row in read_metrics(run_dir) if row.get("cost_mean") is not None]
    assert rows and all(row["cost_error"] == 0.0 for row in rows)
    return [row["cost_mean"] for row in rows]


@pytest.mark.usefixtures("algorithms")
def test_an_online_run_learns_from_infos_and_resumes_exactly(tmp_path: Path) -> None:
    def config(name: str, steps: int) -> TrainConfig:
        settings = {**SMALL, "learning_starts": 8, "buffer_capacity": 30}
        return TrainConfig(
            algo="costly_sac",
            env_id="FieldsPlant-v0",
            total_timesteps=steps,
            output_dir=str(tmp_path / name),
            log_interval=4,
            eval_episodes=1,
            algo_kwargs=settings,
        )

    at_once = costs_of_batches(train(config("at_once", 40)).run_dir)
    half = train(config("halves", 20))
    resumed = resume_training(half.run_dir, total_timesteps=40, quiet=True)
    assert costs_of_batches(resumed.run_dir)[-5:] == at_once[-5:]


@pytest.mark.usefixtures("algorithms")
@pytest.mark.parametrize("in_memory", [True, False])
def test_an_offline_run_learns_from_a_table_and_resumes_exactly(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_memory: bool
) -> None:
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "cache"))
    with (tmp_path / "log.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["x", "u", "reward", "episode", "overheat"])
        table.writerows([row, row % 3 / 3, 1.0, row // 9, 10 * (row + 1)] for row in range(36))
    part = {"dataset_kind": "csv", "dataset_path": str(tmp_path / "log.csv")}
    part["columns"] = {"observations": ["x"], "actions": ["u"], "fields": {"energy": "overheat"}}

    def config(name: str, steps: int) -> TrainConfig:
        settings = {**SMALL, "dataset_kind": "mix", "dataset_parts": [part, part]}
        settings |= {"dataset_in_memory": in_memory, "action_low": [-1.0], "action_high": [1.0]}
        return TrainConfig(
            algo="costly_bc",
            total_timesteps=steps,
            output_dir=str(tmp_path / name),
            log_interval=4,
            algo_kwargs=settings,
        )

    at_once = costs_of_batches(train(config("at_once", 24)).run_dir)
    resumed = resume_training(train(config("halves", 12)).run_dir, total_timesteps=24, quiet=True)
    assert costs_of_batches(resumed.run_dir)[-3:] == at_once[-3:]


@pytest.mark.usefixtures("algorithms")
def test_an_environment_that_does_not_tell_is_named_at_once(tmp_path: Path) -> None:
    config = TrainConfig(
        algo="costly_sac", env_id="Pendulum-v1", total_timesteps=20, output_dir=str(tmp_path)
    )
    with pytest.raises(RunFailed, match=r"returned no info\['kwh'\], which the field energy"):
        train(config)
