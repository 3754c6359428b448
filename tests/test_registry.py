"""The registry: one line per algorithm, parts found by name, and every algorithm complete."""

import pytest

from rl_training.cli import main
from rl_training.core.errors import ConfigError
from rl_training.core.registry import (
    ALGORITHMS,
    algorithm_names,
    entry,
    get_algorithm_spec,
    load_object,
)
from rl_training.experiment.config import (
    ConfigModel,
    describe_fields,
    list_packaged_configs,
    load_config,
    parse_config,
)


def test_names_are_in_the_order_of_the_registry() -> None:
    assert algorithm_names() == tuple(ALGORITHMS)
    assert algorithm_names()[0] == "sac"


@pytest.mark.parametrize("name", ["scc", "SAC", "s-a-c"])
def test_an_unknown_name_is_a_config_mistake_with_a_suggestion(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_algorithm_spec(name)
    assert str(caught.value).endswith(f"got {name!r} (did you mean 'sac'?)")


def test_an_entry_is_where_the_layout_says() -> None:
    line = entry("TD3BC", "td3_bc", kind="offline")
    assert line.recipe == "rl_training.runtime.td3_bc_trainer:RECIPE"
    assert line.train == "rl_training.runtime.td3_bc_trainer:train_td3_bc"


def test_load_object_follows_an_import_string() -> None:
    assert load_object("rl_training.core.registry:get_algorithm_spec") is get_algorithm_spec


@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_a_spec_finds_all_parts(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    assert (spec.name, spec.class_name, spec.kind) == (
        algo,
        ALGORITHMS[algo].class_name,
        ALGORITHMS[algo].kind,
    )
    assert spec.train_fn.__name__ == f"train_{algo}"
    assert spec.evaluate_fn.__name__ == "evaluate_checkpoint"
    assert spec.predict_fn.__name__ == "predict_checkpoint"
    assert spec.learner.__name__ == spec.class_name
    assert spec.recipe.name == algo


@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_settings_are_complete_and_explained(algo: str) -> None:
    config_class = get_algorithm_spec(algo).config_class
    assert issubclass(config_class, ConfigModel)
    rows = describe_fields(config_class)
    assert [row.name for row in rows if not row.meaning or "value" in row.type] == []
    assert config_class.build(config_class().to_dict()) == config_class()  # the defaults obey the rules
    assert {"learning_rate", "batch_size", "eval_interval", "early_stopping"} <= {row.name for row in rows}


@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_a_misspelled_setting_is_refused(algo: str) -> None:
    with pytest.raises(ConfigError, match=r"algo_kwargs\.learnig_rate .* \(did you mean 'learning_rate'\?\)"):
        parse_config(
            {"algo": algo, "env_id": "Pendulum-v1", "total_timesteps": 1, "algo_kwargs": {"learnig_rate": 9}}
        )


@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_there_is_a_starter_config(algo: str) -> None:
    assert f"{algo}/pendulum" in {config.name for config in list_packaged_configs()}
    assert load_config(f"{algo}/pendulum").algo == algo


@pytest.mark.parametrize("algo", list(ALGORITHMS))
def test_describe_knows_every_field(algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", algo]) == 0
    words = capsys.readouterr().out.split()
    missing = [
        row.name for row in describe_fields(get_algorithm_spec(algo).config_class) if row.name not in words
    ]
    assert missing == []
