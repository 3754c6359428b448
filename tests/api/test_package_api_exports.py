"""Public names: managed classes at the top, learners and losses one level down, the same names everywhere."""

import pytest

import rl_training
import rl_training.algorithms
import rl_training.api
from rl_training.core.registry import ALGORITHMS, builtin_algorithms
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec

CLASS_NAMES = [facts.class_name for facts in builtin_algorithms().values()]


@pytest.mark.parametrize("name", CLASS_NAMES)
def test_managed_class_is_exported_at_both_places(name: str) -> None:
    managed = getattr(rl_training, name)
    assert managed is getattr(rl_training.api, name)
    assert managed.__name__ == name
    for method in ("learn", "evaluate", "predict", "save", "load"):
        assert callable(getattr(managed, method))


@pytest.mark.parametrize("algo", ALGORITHMS.names())
def test_learner_is_exported_under_both_names(algo: str) -> None:
    spec = get_algorithm_spec(algo)
    learner = getattr(rl_training.algorithms, spec.class_name)
    assert learner is spec.recipe.learner
    assert learner is getattr(rl_training.algorithms, f"{spec.class_name}Algorithm")
    assert learner is not getattr(rl_training, spec.class_name)
    assert callable(getattr(rl_training.algorithms, f"{algo}_loss"))


@pytest.mark.parametrize("package", [rl_training, rl_training.api])
def test_the_public_list_is_complete_and_true(package: object) -> None:
    names = set(package.__all__)  # type: ignore[attr-defined]
    assert {*CLASS_NAMES, "TrainConfig"} <= names
    assert package.TrainConfig is TrainConfig  # type: ignore[attr-defined]
    assert {*CLASS_NAMES, "TrainConfig"} <= set(dir(package))


def test_star_import_gives_the_public_names() -> None:
    names: dict[str, object] = {}
    exec("from rl_training import *", names)
    assert names["TrainConfig"] is TrainConfig
    assert set(CLASS_NAMES) <= names.keys()


@pytest.mark.parametrize("package", [rl_training, rl_training.api])
def test_an_unknown_name_is_an_attribute_error(package: object) -> None:
    with pytest.raises(AttributeError, match="has no attribute 'SCA'"):
        package.SCA  # type: ignore[attr-defined]  # noqa: B018
