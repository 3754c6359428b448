"""The config: strict types, every mistake at once, the same values through YAML, overrides and Python."""

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, Literal, Self

import pytest
from pydantic import ValidationError, model_validator

from rl_training.config.run import ControlFields, EarlyStoppingConfig, OnlineFields, apply_overrides
from rl_training.core.errors import OTHER_NAMES, SHORT_WORDS, ConfigError, UserError
from rl_training.core.registry import ALGORITHMS, builtin_algorithms
from rl_training.experiment.config import (
    ConfigModel,
    TrainConfig,
    config_to_yaml,
    describe_fields,
    list_packaged_configs,
    load_config,
    parse_config,
    setting,
)
from rl_training.sweeps.plan import load_sweep_config
from rl_training.sweeps.tune import load_tune_config


class ToyConfig(ConfigModel):
    """A learner's keywords, with one field of every kind."""

    learning_rate: float = setting(3e-4, "step size", gt=0)
    gamma: float = setting(0.99, "discount", ge=0, le=1)
    alpha: float | Literal["auto"] = setting("auto", "temperature", gt=0)
    hidden_sizes: tuple[int, ...] = setting((256, 256), "widths", ge=1)
    clip_range: tuple[float, float] | None = setting(None, "smallest and largest value")
    num_critics: int = setting(2, "critics", ge=1)
    subset_size: int = setting(2, "critics in a target", ge=1)
    cql_alpha: float = setting(5.0, "weight of the conservative term", gt=0)

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        if self.subset_size > self.num_critics:
            raise ValueError(
                f"subset_size must be <= num_critics ({self.num_critics}), got {self.subset_size}"
            )
        return self


class ToyRunConfig(ToyConfig, OnlineFields):
    """What a recipe names: the learner's keywords with the groups of an online run."""

    batch_size: int = setting(32, "transitions per gradient update", ge=1)


@pytest.fixture(autouse=True)
def toy_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two algorithms that need no torch: `toy` collects its own data, `toy_offline` does not."""
    for name, online in (("toy", True), ("toy_offline", False)):
        recipe: Any = SimpleNamespace(name=name, settings=ToyRunConfig, class_name="Toy", online=online)
        monkeypatch.setattr(ALGORITHMS, "_parts", {**ALGORITHMS._parts, name: recipe})


def mistakes(values: dict[Any, Any], model: type[ConfigModel] = ToyConfig, where: str = "") -> list[str]:
    with pytest.raises(ConfigError) as caught:
        model.build(values, where=where)
    return str(caught.value).splitlines()


def toy(**changes: Any) -> TrainConfig:
    return TrainConfig(**{"algo": "toy", "env_id": "Pendulum-v1", "total_timesteps": 100, **changes})


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"cql_alpha": 0.0}, "cql_alpha must be > 0, got 0.0"),
        ({"gamma": 1.5}, "gamma must be in [0, 1], got 1.5"),
        ({"gamma": "high"}, "gamma must be a number, got 'high'"),
        ({"gamma": True}, "gamma must be a number, got True"),
        ({"gamma": None}, "gamma must be a number, got None"),
        ({"gamma": math.nan}, "gamma must be a finite number, got nan"),
        ({"learning_rate": math.inf}, "learning_rate must be a finite number, got inf"),
        ({"num_critics": "3"}, "num_critics must be an integer, got '3'"),
        ({"num_critics": 3.0}, "num_critics must be an integer, got 3.0 (write 3)"),
        ({"num_critics": True}, "num_critics must be an integer, got True"),
        ({"alpha": "atuo"}, "alpha must be a number or 'auto', got 'atuo' (did you mean 'auto'?)"),
        ({"alpha": False}, "alpha must be a number or 'auto', got False"),
        ({"alpha": -0.5}, "alpha must be > 0, got -0.5"),
        ({"hidden_sizes": 256}, "hidden_sizes must be a list of integers, got 256"),
        ({"hidden_sizes": [32, "a"]}, "hidden_sizes must be a list of integers, got [32, 'a']"),
        ({"hidden_sizes": [32, 0]}, "hidden_sizes[1] must be >= 1, got 0"),
        ({"clip_range": [1.0]}, "clip_range must be a list of 2 numbers or null, got [1.0]"),
        ({"cql_alhpa": 1.0}, "cql_alhpa is not a known key (did you mean 'cql_alpha'?)"),
        ({"zzz": 1.0}, "zzz is not a known key"),
        ({3: 1.0}, "3 is not a known key (keys are text)"),
        ({"subset_size": 3}, "subset_size must be <= num_critics (2), got 3"),
    ],
)
def test_a_mistake_is_one_sentence_with_field_rule_and_value(values: dict[Any, Any], sentence: str) -> None:
    assert mistakes(values) == [sentence]


def test_all_mistakes_come_out_together_and_carry_their_place() -> None:
    values = {"cql_alhpa": 0, "gamma": 2, "alpha": "high", "hidden_sizes": [0]}
    assert mistakes(values, where="algo_kwargs") == [
        "algo_kwargs.gamma must be in [0, 1], got 2.0",
        "algo_kwargs.alpha must be a number or 'auto', got 'high'",
        "algo_kwargs.hidden_sizes[0] must be >= 1, got 0",
        "algo_kwargs.cql_alhpa is not a known key (did you mean 'cql_alpha'?)",
    ]


def test_a_rule_between_fields_carries_its_place() -> None:
    expected = "algo_kwargs.subset_size must be <= num_critics (2), got 4"
    assert mistakes({"subset_size": 4}, where="algo_kwargs") == [expected]


def test_mistakes_of_a_nested_config_name_the_whole_path() -> None:
    values = {"early_stopping": {"patience": 0, "mod": "max"}, "batch_size": 0}
    assert mistakes(values, ControlFields) == [
        "batch_size must be >= 1, got 0",
        "early_stopping.patience must be >= 1, got 0",
        "early_stopping.mod is not a known key (did you mean 'mode'?)",
    ]
    assert mistakes({"early_stopping": 3}, ControlFields) == [
        "early_stopping must be a mapping or null, got 3"
    ]


class Part(ConfigModel):
    weight: float = setting(1.0, "share", gt=0)


class Mix(ConfigModel):
    sources: tuple[Literal["here", "there", "away"], ...] = setting((), "where from")
    parts: tuple[Part, ...] = setting((), "what is mixed")


def test_mistakes_in_a_list_of_configs_name_the_entry() -> None:
    assert mistakes({"parts": [{}, {"weight": 0}]}, Mix) == ["parts[1].weight must be > 0, got 0.0"]
    assert mistakes({"parts": [{}, 3]}, Mix) == ["parts must be a list of mappings, got [{}, 3]"]
    assert Mix.build({"parts": [{"weight": 2}]}).parts == (Part(weight=2.0),)
    assert [row.name for row in describe_fields(Mix)] == ["sources", "parts", "parts.weight"]
    assert mistakes({"sources": ["her"]}, Mix) == [
        "sources must be a list of 'here', 'there', 'away', got ['her'] (did you mean 'here'?)"
    ]


def test_integers_stand_for_numbers_and_lists_for_tuples() -> None:
    config = ToyConfig.build({"gamma": 1, "hidden_sizes": [8, 4], "clip_range": [0, 1.5], "alpha": 2})
    assert (config.gamma, config.hidden_sizes, config.clip_range, config.alpha) == (
        1.0,
        (8, 4),
        (0.0, 1.5),
        2.0,
    )
    assert isinstance(config.gamma, float)


def test_construction_in_python_reports_the_same_way_and_is_frozen() -> None:
    with pytest.raises(ValueError, match=r"^cql_alpha must be > 0, got 0\.0$"):
        ToyConfig(cql_alpha=0.0)
    config = ToyConfig()
    with pytest.raises(ValidationError, match="frozen"):
        config.gamma = 0.5  # type: ignore[misc]


def test_a_long_value_does_not_flood_the_message() -> None:
    (line,) = mistakes({"gamma": "x" * 500})
    assert len(line) < 120 and line.endswith("...")


def test_run_config_mistakes_come_out_with_those_of_the_run() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(
            {
                "algo": "toy",
                "sed": 1,
                "gamma": 0.9,
                "total_timesteps": "many",
                "device": "gpu",
                "algo_kwargs": {"gama": 0.9, "seed": 3, "train_frequency": 0},
            }
        )
    assert str(caught.value).splitlines() == [
        "total_timesteps must be an integer, got 'many'",
        "device must be auto, cpu, cuda, cuda:N or mps, got 'gpu'",
        "sed is not a known key (did you mean 'seed'?)",
        "gamma is not a known key here ('algo_kwargs.gamma' belongs inside algo_kwargs)",
        "env_id is required: toy collects its own data in an environment",
        "algo_kwargs.seed is not a known key here ('seed' belongs outside algo_kwargs)",
        "algo_kwargs.train_frequency must be >= 1, got 0",
        "algo_kwargs.gama is not a known key (did you mean 'gamma'?)",
    ]
    assert isinstance(caught.value, UserError)


def test_required_keys_are_named_with_their_meaning() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config({})
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0] for line in lines] == ["algo is required", "total_timesteps is required"]


def test_unknown_algorithm_lists_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match=r"^algo must be one of .*toy.*, got 'toyy' \(did you mean 'toy'\?\)$"
    ):
        toy(algo="toyy")


def test_offline_algorithms_do_without_an_environment() -> None:
    assert toy(algo="toy_offline", env_id=None).env_id is None


def test_kwargs_are_kept_as_given_plain_and_private() -> None:
    given = {"hidden_sizes": (8, 8), "early_stopping": EarlyStoppingConfig(patience=2)}
    config = toy(algo_kwargs=given, output_dir=Path("some/place"))
    given["hidden_sizes"] = (1,)
    assert config.algo_kwargs["hidden_sizes"] == [8, 8]
    assert config.algo_kwargs["early_stopping"]["patience"] == 2
    assert config.algo_kwargs.keys() == {"hidden_sizes", "early_stopping"}
    assert config.output_dir == "some/place"


def test_kwargs_that_no_file_could_hold_are_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"^env_kwargs\.hook must be plain data .*, got <built-in function print>$"
    ):
        toy(env_kwargs={"hook": print})


def test_run_config_fills_the_defaults() -> None:
    run = toy(algo_kwargs={"hidden_sizes": [8], "early_stopping": {"target": -200}}).run_config()
    assert isinstance(run, ToyRunConfig)
    assert (run.hidden_sizes, run.gamma, run.batch_size) == ((8,), 0.99, 32)
    assert run.early_stopping == EarlyStoppingConfig(target=-200.0)


def test_replace_checks_again() -> None:
    config = toy(algo_kwargs={"gamma": 0.9})
    assert config.replace(seed=4).algo_kwargs == {"gamma": 0.9}
    with pytest.raises(ConfigError, match="total_timesteps must be >= 1, got 0"):
        config.replace(total_timesteps=0)


def test_online_runs_have_no_epochs_and_warmup_fits_the_schedule() -> None:
    assert mistakes({"max_epochs": 3}, OnlineFields)[0].endswith("got 3; use max_updates")
    expected = "warmup_steps must be <= schedule_steps (10), got 20"
    assert mistakes({"warmup_steps": 20, "schedule_steps": 10}, OnlineFields) == [expected]


# ---- YAML


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "run.yaml"
    path.write_text(text)
    return path


TOY_YAML = "algo: toy\nenv_id: Pendulum-v1\ntotal_timesteps: 10_000\n"


@pytest.mark.parametrize(
    ("text", "number"),
    [("1e-4", 1e-4), ("1E-4", 1e-4), ("1.5e-3", 1.5e-3), ("5e1", 50.0), (".5e0", 0.5), ("2", 2.0)],
)
def test_yaml_numbers_with_an_exponent_are_numbers(tmp_path: Path, text: str, number: float) -> None:
    config = load_config(write(tmp_path, f"{TOY_YAML}algo_kwargs:\n  learning_rate: {text}\n"))
    assert config.run_config().to_dict()["learning_rate"] == number
    assert config.total_timesteps == 10_000


def test_yaml_text_that_looks_like_a_number_stays_text(tmp_path: Path) -> None:
    config = toy(tags=["1e-4", "on", "12"])
    assert load_config(write(tmp_path, config_to_yaml(config))).tags == ("1e-4", "on", "12")


def test_round_trip_yaml_config_yaml(tmp_path: Path) -> None:
    config = toy(
        seed=3,
        tags=("a", "b"),
        env_kwargs={"g": 9.81},
        algo_kwargs={"learning_rate": 1e-5, "hidden_sizes": [8, 8], "early_stopping": {"patience": 2}},
    )
    text = config_to_yaml(config)
    again = load_config(write(tmp_path, text))
    assert again == config
    assert config_to_yaml(again) == text
    assert "hidden_sizes: [8, 8]" in text


def test_resolved_yaml_names_every_setting_and_means_the_same(tmp_path: Path) -> None:
    config = toy(algo_kwargs={"gamma": 0.5})
    again = load_config(write(tmp_path, config_to_yaml(config, settings=config.run_config())))
    assert again.algo_kwargs.keys() == ToyRunConfig.model_fields.keys()
    assert again.run_config() == config.run_config()


def test_overrides_are_read_like_yaml_and_reach_every_level(tmp_path: Path) -> None:
    overrides = [
        "seed=7",
        "env_id=Other-v0",
        "algo_kwargs.learning_rate=1e-3",
        "algo_kwargs.hidden_sizes=[16, 16]",
        "algo_kwargs.early_stopping.patience=2",
        "algo_kwargs.alpha=auto",
        "algo_kwargs.save_best=false",
        "tags=[quick]",
    ]
    config = load_config(write(tmp_path, TOY_YAML), overrides)
    run = config.run_config().to_dict()
    assert (config.seed, config.env_id, config.tags) == (7, "Other-v0", ("quick",))
    assert (run["learning_rate"], run["hidden_sizes"], run["save_best"]) == (1e-3, [16, 16], False)
    assert run["early_stopping"]["patience"] == 2


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("seed", "--set needs key=value (such as algo_kwargs.gamma=0.98), got 'seed'"),
        ("=3", "--set needs key=value (such as algo_kwargs.gamma=0.98), got '=3'"),
        ("seed.x=3", "--set seed.x=3: seed is not a mapping, got 0"),
        ("tags=[a", "--set tags is not valid YAML: line 1: "),
        ("seed=1.5", "seed must be an integer, got 1.5"),
        ("algo_kwargs.gama=1", "algo_kwargs.gama is not a known key (did you mean 'gamma'?)"),
        ("gama=1", "gama is not a known key (did you mean 'algo_kwargs.gamma'?)"),
    ],
)
def test_a_bad_override_says_what_is_wrong(tmp_path: Path, override: str, complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config(write(tmp_path, TOY_YAML + "seed: 0\n"), [override])
    assert str(caught.value).startswith(complaint)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("algo: [sac", "is not valid YAML: line 1: expected ',' or ']'"),
        ("algo: sac\nseed: 1\nseed: 2\n", "is not valid YAML: line 3: key 'seed' is given twice"),
        ("- algo: sac\n", "must hold a mapping such as `algo: sac`"),
        ("", "is not a config: it sets none of the settings of one; it must hold a mapping such as"),
        ("seed: 1\nwhen: 2020-99-99\n", "is not valid YAML"),
        ("algo: !!python/object/apply:os.system ['true']\n", "is not valid YAML"),
    ],
)
def test_a_broken_file_is_reported_with_its_name(tmp_path: Path, text: str, complaint: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    message = str(caught.value)
    assert message.startswith(str(path)) and complaint in message and "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        *("hunter2", "- hunter2\n- hunter2", "hunter2: hunter2\n", "*hunter2", "a: !hunter2 x", "%hunter2"),
        *(
            "hunter2: 1\nhunter2: 2\n",
            "root:hunter2:0:0\n",
            "key=hunter2",
            "'hunter2",
            "{hunter2: 2020-99-99}",
        ),
    ],
)
def test_what_is_in_another_file_is_not_told(tmp_path: Path, text: str) -> None:
    """Somebody may name any file that the process can read; what the error says may be seen by others."""
    path = write(tmp_path, text)
    for load in (load_config, load_sweep_config, load_tune_config):
        with pytest.raises(ConfigError, match=r"is not a (config|sweep|tune): it sets none") as caught:
            load(path)
        assert "hunter2" not in str(caught.value)


def test_a_file_that_is_not_text_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"is not YAML: it is not text in UTF-8$"):
        load_config(path)


def test_a_missing_config_suggests_a_packaged_one() -> None:
    with pytest.raises(
        ConfigError, match=r"neither a file nor a packaged config \(did you mean 'sac/pendulum'\?\)"
    ):
        load_config("sac/pendulun")


# ---- packaged configs and descriptions


def test_packaged_configs_are_listed_by_name_with_a_summary() -> None:
    packaged = {config.name: config for config in list_packaged_configs()}
    assert {"td3_bc/demo", "sac/pendulum"} <= packaged.keys()
    assert list(packaged) == sorted(packaged)
    pendulum = packaged["sac/pendulum"]
    assert (pendulum.algo, pendulum.env_id, pendulum.total_timesteps) == ("sac", "Pendulum-v1", 10_000)
    assert all(config.summary for config in packaged.values())


@pytest.mark.parametrize("name", [config.name for config in list_packaged_configs()])
def test_a_packaged_config_is_valid(name: str) -> None:
    config = load_config(name)
    assert name.startswith(f"{config.algo}/")
    assert config == load_config(f"{name}.yaml")


@pytest.mark.parametrize("name", ["sac/pendulum"])
def test_the_first_configs_a_reader_sees_write_only_what_differs(name: str) -> None:
    config = load_config(name)
    run_fields = ALGORITHMS.get(config.algo).settings.model_fields
    same = [key for key, value in config.algo_kwargs.items() if value == run_fields[key].default]
    same += [
        key
        for key in config.model_fields_set - {"algo_kwargs", "env_kwargs"}
        if getattr(config, key) == TrainConfig.model_fields[key].default
    ]
    assert same == []


def test_describe_has_type_bound_default_and_meaning_of_every_field() -> None:
    rows = {row.name: row for row in describe_fields(ToyRunConfig)}
    assert ToyRunConfig.model_fields.keys() <= rows.keys()
    assert all(row.type and row.default and row.meaning and row.group for row in rows.values())
    alpha, sizes, gamma = rows["alpha"], rows["hidden_sizes"], rows["gamma"]
    assert (alpha.type, alpha.bound, alpha.default, alpha.meaning) == (
        "number or 'auto'",
        "> 0",
        "auto",
        "temperature",
    )
    assert (sizes.type, sizes.default, gamma.bound) == ("list of integers", "[256, 256]", "in [0, 1]")
    assert rows["early_stopping.patience"].bound == ">= 1"
    assert rows["max_updates"].default == "null" and rows["save_best"].default == "true"
    assert rows["learning_rate_schedule"].type == "one of 'constant', 'linear', 'cosine'"


def test_describe_groups_a_field_by_the_class_that_introduced_it() -> None:
    groups = {row.name: row.group for row in describe_fields(ToyRunConfig)}
    assert groups["gamma"] == "hyper-parameters"
    assert groups["batch_size"] == "run control"  # ToyRunConfig only changes its default
    assert groups["buffer_capacity"] == "online collection"


def test_describe_marks_required_fields() -> None:
    rows = {row.name: row for row in describe_fields(TrainConfig)}
    assert rows["algo"].default == rows["total_timesteps"].default == "required"


def test_a_class_may_name_its_own_section() -> None:
    class Extra(ConfigModel):
        section: ClassVar[str] = "extra"
        size: int = setting(1, "how much")

    assert describe_fields(Extra)[0].group == "extra"


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("algo_kwargs.actor_lr", "actor_learning_rate"),
        ("algo_kwargs.critic_lr", "critic_learning_rate"),
        ("algo_kwargs.qf_lr", "critic_learning_rate"),
        ("algo_kwargs.policy_lr", "actor_learning_rate"),
        ("algo_kwargs.lr", "learning_rate"),
        ("algo_kwargs.actr_lr", "actor_learning_rate"),
        ("algo_kwargs.lr_schedule", "learning_rate_schedule"),
        ("algo_kwargs.discount", "gamma"),
        ("algo_kwargs.buffer_size", "buffer_capacity"),
        ("algo_kwargs.net_arch", "hidden_sizes"),
        ("lr", "algo_kwargs.learning_rate"),
        ("n_envs", "num_envs"),
        ("env", "env_id"),
        ("total_steps", "total_timesteps"),
    ],
)
def test_a_name_from_elsewhere_is_understood(written: str, meant: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load_config("sac/pendulum", [f"{written}=1"])
    assert str(caught.value).endswith(f"(did you mean '{meant}'?)")


def test_every_name_from_elsewhere_stands_for_a_setting() -> None:
    names = {*TrainConfig.model_fields}
    for algo in builtin_algorithms():
        names |= ALGORITHMS.get(algo).settings.model_fields.keys()
    assert set(OTHER_NAMES.values()) <= names
    parts = {part for name in names for part in (name, *name.split("_"))}
    assert set(SHORT_WORDS.values()) <= parts


def test_parts_may_be_added_to_a_mapping_that_was_given_but_not_changed() -> None:
    """`--set columns={…}` and an option for one more column go together; two rewards do not."""
    values: dict[str, Any] = {}
    apply_overrides(values, ["columns={reward: r}", ("columns.time", "t")])
    assert values == {"columns": {"reward": "r", "time": "t"}}
    with pytest.raises(ConfigError, match="columns is given twice"):
        apply_overrides({}, ["columns={reward: r}", ("columns.reward", "s")])
