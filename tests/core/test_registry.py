"""The registry: one line per algorithm, parts found by name, and every algorithm complete."""

import re
from pathlib import Path

import pytest

import rl_training
from helpers import task_of
from rl_training.algorithms.recipe import get_recipe
from rl_training.cli import main
from rl_training.core.errors import ConfigError
from rl_training.core.registry import (
    ALGORITHMS,
    BUILTIN_FORMATS,
    Registry,
    algorithm_facts,
    builtin_algorithms,
    load_object,
)
from rl_training.experiment.config import (
    ConfigModel,
    describe_fields,
    list_packaged_configs,
    load_config,
    parse_config,
)
from rl_training.experiment.registry import get_algorithm_spec


def test_every_file_with_a_recipe_or_a_format_is_on_its_list() -> None:
    """A file that is not listed would be there for nobody."""
    package = Path(rl_training.__file__).parent
    recipes = {path.stem for path in package.glob("algorithms/*.py") if "\nRECIPE = " in path.read_text()}
    assert {facts.module.rpartition(".")[2] for facts in builtin_algorithms().values()} == recipes
    formats = {
        f"rl_training.data.formats.{path.stem}:{name}"
        for path in package.glob("data/formats/*.py")
        for name in re.findall(r"^([A-Z][A-Z0-9]*) = (?:Format|_of_kind)\(", path.read_text(), re.MULTILINE)
    }
    assert set(BUILTIN_FORMATS.values()) == formats


def test_what_the_list_says_is_what_the_recipes_are() -> None:
    """Lists are shown without importing what is on them, so they must say what the recipes say."""
    assert len(builtin_algorithms()) >= 10
    for name, facts in builtin_algorithms().items():
        recipe = get_recipe(name)
        assert (facts.name, facts.class_name, facts.online) == (recipe.name, recipe.class_name, recipe.online)
        assert facts.module == recipe.learner.__module__
    assert algorithm_facts("nobody") is None


@pytest.mark.parametrize("name", ["scc", "SAC", "s-a-c"])
def test_an_unknown_name_is_a_config_mistake_with_a_suggestion(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        get_algorithm_spec(name)
    assert str(caught.value).endswith(f"got {name!r} (did you mean 'sac'?)")


def test_load_object_follows_an_import_string() -> None:
    assert load_object("rl_training.core.registry:Registry") is Registry


@pytest.mark.parametrize("algo", ALGORITHMS.names())
def test_a_spec_finds_all_parts(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    facts = builtin_algorithms()[algo]
    kind = "online" if facts.online else "offline"
    assert (spec.name, spec.class_name, spec.kind) == (algo, facts.class_name, kind)
    assert spec.train_fn.__name__ == f"train_{algo}"
    assert spec.evaluate_fn.__name__ == "evaluate_checkpoint"
    assert spec.predict_fn.__name__ == "predict_checkpoint"
    assert spec.recipe.learner.__name__ == spec.class_name
    assert spec.recipe.name == algo


@pytest.mark.parametrize("algo", ALGORITHMS.names())
def test_settings_are_complete_and_explained(algo: str) -> None:
    config_class = get_recipe(algo).settings
    assert issubclass(config_class, ConfigModel)
    rows = describe_fields(config_class)
    assert [row.name for row in rows if not row.meaning or "value" in row.type] == []
    assert config_class.build(config_class().to_dict()) == config_class()  # the defaults obey the rules
    assert {"learning_rate", "batch_size", "eval_interval", "early_stopping"} <= {row.name for row in rows}


@pytest.mark.parametrize("algo", ALGORITHMS.names())
def test_a_misspelled_setting_is_refused(algo: str) -> None:
    with pytest.raises(ConfigError, match=r"algo_kwargs\.learnig_rate .* \(did you mean 'learning_rate'\?\)"):
        parse_config(
            {"algo": algo, "env_id": "Pendulum-v1", "total_timesteps": 1, "algo_kwargs": {"learnig_rate": 9}}
        )


@pytest.mark.parametrize("algo", ALGORITHMS.names())
def test_there_is_a_starter_config(algo: str) -> None:
    starter = f"{algo}/{task_of(algo)}"
    assert starter in {config.name for config in list_packaged_configs()}
    assert load_config(starter).algo == algo


@pytest.mark.parametrize("algo", ALGORITHMS.names())
def test_describe_knows_every_field(algo: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", algo]) == 0
    words = capsys.readouterr().out.split()
    missing = [row.name for row in describe_fields(get_recipe(algo).settings) if row.name not in words]
    assert missing == []
