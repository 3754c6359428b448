"""Every setting is felt: changing it changes an update, a batch, a log, a file, or is refused."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import felt_data
import felt_runs
import felt_settings
from fake_algorithm import BESIDE, OFFLINE, ONLINE, Witness, fake_config, offline
from fake_world import World, by_action
from felt_settings import DIFFERS, REFUSED, SOUGHT, Felt
from helpers import plain_spaces, slow_but_two
from rl_training.algorithms.recipe import Recipe, get_recipe
from rl_training.config.data import ASKED_FIELDS, ColumnsConfig, DatasetPart, OnlineDataFields
from rl_training.config.run import EarlyStoppingConfig, RewardFields, TrainConfig
from rl_training.core.checkpoints import read_header
from rl_training.core.errors import UserError
from rl_training.core.registry import algorithm_names
from rl_training.runs.tracking import read_metrics
from rl_training.runs.train import train

pytestmark = pytest.mark.filterwarnings("ignore::rl_training.data.reading.DataWarning")
ALGORITHMS = algorithm_names()
TINY = {"hidden_sizes": [6, 6], "learning_rate": 0.01}


def own_settings(algo: str) -> list[str]:
    """Settings of an algorithm's learner and model."""
    recipe = get_recipe(algo)
    return sorted({*recipe.learner.config_class.model_fields, *recipe.model.config_class.model_fields})


def value_for(felt: Felt, default: Any) -> Any:
    plain = list(default) if isinstance(default, tuple) else default
    return next(value for value in felt.values if value != plain)


# ---- settings of learners and models


@pytest.mark.parametrize(
    ("algo", "name"),
    [
        pytest.param(each.values[0], name, marks=each.marks)
        for each in slow_but_two(ALGORITHMS)
        for name in own_settings(each.values[0])
    ],
)
def test_a_setting_of_a_learner_or_model_is_felt(algo: str, name: str) -> None:
    if (algo, name) in felt_settings.OF_THE_DATA:
        assert name in felt_runs.RUN_SETTINGS["offline"]
        return
    felt = felt_settings.OF_ONE.get((algo, name)) or felt_settings.LEARNER.get(name)
    assert felt is not None, f"{name} is new: say in felt_settings.py how it is felt"
    fields = get_recipe(algo).settings.model_fields
    base = {**TINY, **felt_settings.ALWAYS.get(algo, {}), **felt.given}
    changed = {**base, name: value_for(felt, base.get(name, fields[name].default))}
    if felt.how == REFUSED:
        with pytest.raises(UserError, match=name):
            get_recipe(algo).settings.build(changed)
        return
    assert differ(trained(algo, base), trained(algo, changed)), f"{algo} does not feel {name}"


NEVER_ONLINE = ("caps", "lion")
TRAINED: dict[str, dict[str, Tensor]] = {}


def trained(algo: str, settings: dict[str, Any]) -> dict[str, Tensor]:
    """Weights, metrics and actions after three updates on fixed batches; of data, one more is online."""
    key = f"{algo} {json.dumps(settings, sort_keys=True)}"
    if key not in TRAINED:
        recipe = get_recipe(algo)
        learner = recipe.build_learner(recipe.settings.build(settings), plain_spaces(algo, 3, 2), seed=0)
        for step in range(3):
            learner.update(batch_for(algo, step), global_step=step)
        if not recipe.online:
            if algo not in NEVER_ONLINE:
                learner.go_online(0.5)
            learner.update(batch_for(algo, 3), global_step=3)
        obs = np.linspace(-1.0, 1.0, 12, dtype=np.float32).reshape(4, 3)
        acts = {
            f"act {deterministic}": torch.from_numpy(learner.policy.act(obs, deterministic))
            for deterministic in (True, False)
        }
        TRAINED[key] = {**learner.tensors(), **learner.last_metrics, **acts}
    return TRAINED[key]


def fixed_batch(seed: int, rows: int = 12) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    numbers = torch.randn(rows, 12, generator=generator)
    return {
        "obs": numbers[:, :3],
        "actions": numbers[:, 3:5].tanh(),
        "next_obs": numbers[:, 5:8],
        "rewards": numbers[:, 8],
        "dones": (numbers[:, 9] > 1.0).float(),
        "returns_to_go": 5.0 * numbers[:, 9],
        "next_actions": numbers[:, 10:].tanh(),
        "episodes": (torch.arange(rows) // 4).float(),
        "penalties": numbers[:, 9].relu(),
    }


def batch_for(algo: str, seed: int) -> dict[str, Tensor]:
    """The same with actions that the algorithm takes."""
    batch, spaces = fixed_batch(seed), plain_spaces(algo, 3, 2)
    if "costs" in get_recipe(algo).learner.needs:
        batch["costs"] = batch["penalties"].unsqueeze(-1)
    if spaces.choices:
        for name in ("actions", "next_actions"):
            batch[name] = torch.from_numpy(spaces.random(batch[name].numpy()))
    return batch


def differ(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    """More than rounding would."""
    if left.keys() != right.keys():
        return True
    pairs = [(left[name], right[name]) for name in left]
    return any(a.shape != b.shape or not torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in pairs)


def test_equal_settings_are_not_felt() -> None:
    first = trained("sac", TINY)
    TRAINED.clear()
    assert not differ(first, trained("sac", TINY))


# ---- settings of runs


NO_DATA = {"dataset_kind": "none", "dataset_size": None}
NOT_OF_DATA = {
    *RewardFields.model_fields,
    *ASKED_FIELDS,
    *("dataset_kind", "reference_min_return", "reference_max_return"),
}
FAKES = {"offline": OFFLINE, "online": ONLINE, "beside": BESIDE}
"""An algorithm that writes down what it is given, for every kind of run."""


def kind_of(recipe: Recipe) -> str:
    if not recipe.online:
        return "offline"
    return "beside" if issubclass(recipe.settings, OnlineDataFields) else "online"


@pytest.mark.parametrize("algo", ALGORITHMS)
def test_every_other_setting_of_an_algorithm_is_one_of_its_runs(algo: str) -> None:
    recipe = get_recipe(algo)
    kind = kind_of(recipe)
    shared = FAKES[kind].settings.model_fields
    for name, field in recipe.settings.model_fields.items():
        if name not in own_settings(algo):
            assert name in felt_runs.RUN_SETTINGS[kind], (
                f"{name} is new: say in felt_runs.py or felt_data.py …"
            )
            assert field.annotation == shared[name].annotation


def test_every_setting_of_the_shared_groups_has_an_entry() -> None:
    tables = felt_runs.RUN_SETTINGS
    assert TrainConfig.model_fields.keys() <= {*tables["offline"], *tables["online"]}
    assert EarlyStoppingConfig.model_fields.keys() == felt_runs.STOPPING.keys()
    assert ColumnsConfig.model_fields.keys() == felt_data.OF_COLUMNS.keys()
    of_a_part = {*DatasetPart.model_fields, "dataset_kind"} - tables["offline"].keys()
    assert of_a_part == felt_data.OF_A_PART.keys()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    felt_data.write_files(folder)
    return folder


def tell(kind: str, root: Path, settings: dict[str, Any]) -> dict[str, Any]:
    """Everything that can be seen of a short run, without what is different every time."""
    world = World(reward=by_action)
    fixed: dict[str, Any] = {"env_id": "World", "total_timesteps": 10}
    if kind != "online":
        fixed |= {"dataset_kind": "random", "dataset_size": 12}
    if settings.get("algo") == "fake_online":
        fixed = {name: value for name, value in fixed.items() if not name.startswith("dataset")}
    given = {**fixed, **settings}
    nested = given.pop("algo_kwargs", {})
    algo, place = given.pop("algo", f"fake_{kind}"), given.pop("output_dir", "runs")
    config = fake_config(algo, root / place, **{**given, **nested})
    witness = Witness()
    env = world.make if config.env_id == "World" else None
    result = train(config, env=env, callbacks=[witness], quiet=True)
    learner = witness.run.trainer.learner
    passing = {"time", "updates_per_second", "wall_time_seconds"}
    checkpoints = result.run_dir / "checkpoints"
    return {
        "seen": getattr(learner, "seen", None),
        "compiled": getattr(learner, "compiled_with", None),
        "products": learner.products,
        "metrics": {name: value for name, value in result.metrics.items() if name not in passing},
        "rows": [{key: row[key] for key in row.keys() - passing} for row in read_metrics(result.run_dir)],
        "checkpoints": sorted(file.name for file in checkpoints.iterdir()),
        "world": (world.seeds, world.played),
        "place": result.run_dir.parent.name,
        "members": len(result.members),
        "tags": read_header(result.run_dir)["config"]["tags"],
        "cached": (root / "cache").exists(),
    }


@pytest.fixture
def place(tmp_path: Path, files: Path, monkeypatch: pytest.MonkeyPatch, fake_algorithms: None) -> Path:
    """A working directory beside the data files, a cache of its own, a compiler, and no tracker."""
    monkeypatch.chdir(files)
    monkeypatch.setenv("RL_TRAINING_CACHE", str(tmp_path / "changed" / "cache"))
    monkeypatch.setitem(sys.modules, "mlflow", None)
    monkeypatch.setattr("rl_training.runtime.loop.missing_for_compiling", lambda device_type: None)
    monkeypatch.setattr("rl_training.core.products.is_safe", lambda library: True)
    for name, updates in (("some_run", 1), ("other_run", 200)):
        if not Path(name).exists():
            offline(files, total_timesteps=updates).result.run_dir.rename(name)
    return tmp_path


@pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind, table in felt_runs.RUN_SETTINGS.items() for name in table],
)
def test_a_setting_of_a_run_is_felt(kind: str, name: str, place: Path) -> None:
    felt = felt_runs.RUN_SETTINGS[kind][name]
    assert_felt(kind, place, felt, dict(felt.given), {**felt.given, name: felt.values[0]}, name)


def assert_felt(
    kind: str, place: Path, felt: Felt, base: dict[str, Any], changed: dict[str, Any], name: str
) -> None:
    if felt.how == SOUGHT:
        with pytest.raises(UserError, match=felt.told or felt.values[0]):
            tell(kind, place / "changed", changed)
    elif felt.how != DIFFERS:
        refused, other = (changed, base) if felt.how == REFUSED else (base, changed)
        with pytest.raises(UserError, match=felt.told or name):
            tell(kind, place / "base", refused)
        tell(kind, place / "changed", other)
    else:
        key = f"{kind} {sorted(base.items())}"
        if key not in BASES:
            BASES[key] = tell(kind, place / "base", base)
        assert BASES[key] != tell(kind, place / "changed", changed)


BASES: dict[str, dict[str, Any]] = {}
"""What is seen of runs with the settings that others are compared with."""


@pytest.mark.parametrize(
    ("kind", "given"),
    [
        ("offline", {**felt_runs.EVALUATED, **felt_runs.GOES_ON}),
        ("offline", felt_data.log()),
        ("online", felt_runs.EVALUATED),
        ("beside", felt_runs.EVALUATED),
        ("beside", felt_data.log()),
    ],
)
def test_equal_settings_tell_the_same(kind: str, given: dict[str, Any], place: Path) -> None:
    base, again = (tell(kind, place / name, given) for name in ("base", "again"))
    assert base == again


@pytest.mark.parametrize("name", sorted({*OnlineDataFields.model_fields} - NOT_OF_DATA))
def test_a_setting_of_data_is_refused_where_there_is_none(name: str, place: Path) -> None:
    with pytest.raises(UserError, match=f"{name} must be "):
        tell("beside", place, {**NO_DATA, name: felt_runs.BESIDE[name].values[0]})


def test_reference_returns_count_without_data(place: Path) -> None:
    given = {**NO_DATA, **felt_data.REFERENCE}
    metrics = tell("beside", place, given)["metrics"]
    assert metrics["eval_normalized_score"] == pytest.approx(10.0 * metrics["eval_return_mean"])


@pytest.mark.parametrize("name", felt_runs.STOPPING)
def test_a_setting_of_early_stopping_is_felt(name: str, place: Path) -> None:
    felt = felt_runs.STOPPING[name]
    rules = (felt.given, {**felt.given, name: felt.values[0]})
    base, changed = ({**felt_runs.EVALUATED, "early_stopping": dict(rule)} for rule in rules)
    assert_felt("offline", place, felt, base, changed, name)


@pytest.mark.parametrize("name", felt_data.OF_COLUMNS)
def test_a_setting_of_columns_is_felt(name: str, place: Path) -> None:
    felt = felt_data.OF_COLUMNS[name]
    base, changed = (felt_data.log(**{**felt.given, **more}) for more in ({}, {name: felt.values[0]}))
    assert_felt("offline", place, felt, base, changed, name)


@pytest.mark.parametrize("name", felt_data.OF_A_PART)
def test_a_setting_of_a_part_of_a_mix_is_felt(name: str, place: Path) -> None:
    felt = felt_data.OF_A_PART[name]
    parts = [{**part, **felt.given["others"]} for part in felt_data.PARTS]
    base = {"dataset_kind": "mix", "dataset_size": 8 if name == "weight" else None, "dataset_parts": parts}
    changed = {**base, "dataset_parts": [{**parts[0], name: felt.values[0]}, parts[1]]}
    assert_felt("offline", place, felt, base, changed, name)
