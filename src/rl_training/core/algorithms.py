"""The list of algorithms. Which ones are built in is read from their files without importing them."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any, Protocol

from rl_training.core.errors import ConfigError
from rl_training.core.registry import Registry

if TYPE_CHECKING:  # the list itself needs no pydantic
    from rl_training.config.run_fields import ControlFields

PACKAGE = "rl_training.algorithms"


class AlgorithmRecipe(Protocol):
    """What this list knows of a recipe; `rl_training.algorithms.recipe.Recipe` is the whole of it."""

    @property
    def name(self) -> str: ...

    @property
    def class_name(self) -> str: ...

    @property
    def online(self) -> bool: ...

    @property
    def settings(self) -> type[ControlFields]: ...

    def upgrade(self, state: dict[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class AlgorithmFacts:
    """What a list, a plot or a page says of an algorithm, without importing it."""

    name: str
    class_name: str
    online: bool
    module: str


@cache
def builtin_algorithms() -> Mapping[str, AlgorithmFacts]:
    """Every file in `algorithms/` that ends in a recipe, by the name of its algorithm."""
    found = {}
    for file in sorted((files("rl_training") / "algorithms").iterdir(), key=lambda file: file.name):
        text = file.read_text(encoding="utf-8") if file.name.endswith(".py") else ""
        if "\nRECIPE = Recipe(" in text:
            facts = _facts(text, f"{PACKAGE}.{file.name.removesuffix('.py')}")
            found[facts.name] = facts
    return found


def _facts(source: str, module: str) -> AlgorithmFacts:
    """Read `RECIPE = Recipe(name="sac", learner=SAC, settings=SACRunConfig, …)` and the class it names."""
    bases: dict[str, set[str]] = {}
    for statement in ast.parse(source).body:
        if isinstance(statement, ast.ClassDef):
            bases[statement.name] = {base.id for base in statement.bases if isinstance(base, ast.Name)}
        if isinstance(statement, ast.Assign) and isinstance(statement.value, ast.Call):
            given = {keyword.arg: keyword.value for keyword in statement.value.keywords}
            name, learner, settings = (given.get(key) for key in ("name", "learner", "settings"))
            if (
                isinstance(name, ast.Constant)
                and isinstance(learner, ast.Name)
                and isinstance(settings, ast.Name)
            ):
                online = "OnlineFields" in bases.get(settings.id, set())
                return AlgorithmFacts(str(name.value), learner.id, online, module)
    raise ConfigError(f"{module} must end in RECIPE = Recipe(name=…, learner=…, settings=…) with plain names")


def _builtin_recipes() -> Mapping[str, str]:
    return {name: f"{facts.module}:RECIPE" for name, facts in builtin_algorithms().items()}


ALGORITHMS: Registry[AlgorithmRecipe] = Registry("algo", "rl_training.algorithms", _builtin_recipes)


def algorithm_names() -> tuple[str, ...]:
    return ALGORITHMS.names()


def algorithm_facts(name: str) -> AlgorithmFacts | None:
    """Facts about an algorithm, built in or registered; none about one that nobody knows."""
    known = builtin_algorithms().get(name)
    if known is not None or name not in ALGORITHMS:
        return known
    recipe = ALGORITHMS.get(name)
    return AlgorithmFacts(name, recipe.class_name, recipe.online, type(recipe).__module__)


def algorithm_classes() -> dict[str, str]:
    """Class name -> name; for the built-in ones nothing is imported."""
    facts = (algorithm_facts(name) for name in ALGORITHMS.names())
    return {each.class_name: each.name for each in facts if each is not None}
