"""Open lists: parts that are chosen by name, whoever wrote them, and exports that are imported on first use.

A part is built in, registered from Python, or offered by an installed package through an entry point.
Built-in parts and entry points are imported when they are first asked for.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Generic, Protocol, TypeVar, cast

from rl_training.core.errors import ConfigError, UserError, did_you_mean

T = TypeVar("T")


class Registry(Generic[T]):
    """Parts of one kind by name; `kind` is the word for it in messages, `group` its entry-point group."""

    def __init__(self, kind: str, group: str, builtin: Mapping[str, str]) -> None:
        """`builtin` maps a name to `module:object`."""
        self.kind, self.group, self.builtin = kind, group, builtin
        self._parts: dict[str, T] = {}
        self._packages: dict[str, str] = {}

    def register(self, name: str, part: T) -> None:
        """Add a part; the same one may be added again, another one of that name may not."""
        known = self._parts.get(name)
        if name in self.builtin or (known is not None and known is not part):
            owner = self.package_of(name) or "rl_training"
            raise ConfigError(
                f"{self.kind} {name!r} exists already (in {owner}); register yours under another name"
            )
        self._parts[name] = part
        self._packages[name] = package_of_object(part)

    def get(self, name: str) -> T:
        """The part of that name; an unknown one is a mistake of the config."""
        if name not in self._parts:
            self._parts[name] = self._load(name)
        return self._parts[name]

    def names(self) -> tuple[str, ...]:
        """Built-in names first, then the others in alphabetical order."""
        others = {*self._parts, *self._offered()} - self.builtin.keys()
        return (*self.builtin, *sorted(others))

    def __contains__(self, name: object) -> bool:
        return name in self.names()

    def package_of(self, name: str) -> str | None:
        """The package that a part came with; none for what is built in."""
        if name in self.builtin:
            return None
        offer = self._offered().get(name)
        if offer is not None and offer.dist is not None:
            return offer.dist.name
        return self._packages.get(name)

    def unknown(self, name: str, field: str | None = None) -> str:
        """The sentence for a name that is not on the list."""
        hint = did_you_mean(name.lower().replace("-", "_"), self.names())
        return f"{field or self.kind} must be one of {', '.join(self.names())}, got {name!r}{hint}"

    def _load(self, name: str) -> T:
        reference = self.builtin.get(name)
        if reference is not None:
            return cast(T, load_object(reference))  # the list's own entries have the type of the list
        offer = self._offered().get(name)
        if offer is None:
            raise ConfigError(self.unknown(name))
        try:
            return cast(T, offer.load())
        except UserError:
            raise
        except Exception as problem:
            text = " ".join(str(problem).split())
            raise ConfigError(
                f"{self.kind} {name!r} of the package {self.package_of(name)} cannot be imported: "
                f"{type(problem).__name__}: {text}"
            ) from problem

    def _offered(self) -> dict[str, EntryPoint]:
        """Entry points by name; two packages that offer one name, or a built-in one, are refused."""
        offers: dict[str, EntryPoint] = {}
        for offer in entry_points_on(tuple(sys.path), self.group):
            rival = offers.get(offer.name)
            taken = offer.name in self.builtin or (rival is not None and rival.value != offer.value)
            if taken:
                owners = sorted({"rl_training" if rival is None else owner_of(rival), owner_of(offer)})
                raise ConfigError(
                    f"{self.kind} {offer.name!r} is offered twice, by {' and by '.join(owners)}; "
                    "uninstall one of them"
                )
            offers[offer.name] = offer
        return offers


@cache
def entry_points_on(path: tuple[str, ...], group: str) -> tuple[EntryPoint, ...]:
    """Those of all packages on a search path, read once: looking takes as long as a small run."""
    return tuple(entry_points(group=group))


def owner_of(offer: EntryPoint) -> str:
    return offer.value if offer.dist is None else offer.dist.name


def package_of_object(part: object) -> str:
    """The top-level package in which a part, or the class behind it, was written."""
    module = getattr(part, "__module__", type(part).__module__)
    return str(module).partition(".")[0]


def load_object(reference: str) -> object:
    """Import `package.module:name`; references come from this package and from code, never from a file."""
    module, _, name = reference.partition(":")
    return getattr(import_module(module), name)


# Exports that are imported on first use (PEP 562).


def lazy_exports(
    package: str, sources: Mapping[str, str]
) -> tuple[Callable[[str], object], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of a package whose names live in other modules.

    `sources` maps a public name to `module` or, where it is called otherwise there, to `module:name`.
    """

    def __getattr__(name: str) -> object:
        if name not in sources:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = sources[name].partition(":")
        return load_object(f"{module}:{attribute or name}")

    def __dir__() -> list[str]:
        return sorted(sources)

    return __getattr__, __dir__


# Parts that come with the package. `rl_training.builtin` fills these lists: this room knows of none above it.


class AlgorithmRecipe(Protocol):
    """What this list knows of a recipe; `rl_training.algorithms.recipe.Recipe` is the whole of it."""

    @property
    def name(self) -> str: ...

    @property
    def class_name(self) -> str: ...

    @property
    def online(self) -> bool: ...

    @property
    def settings(self) -> type[object]: ...

    def upgrade(self, state: dict[str, Any]) -> dict[str, Any]: ...


@dataclass(frozen=True)
class AlgorithmFacts:
    """What is said of an algorithm; `online` ones collect their own data."""

    name: str
    class_name: str
    online: bool
    module: str


BUILTIN_ALGORITHMS: dict[str, AlgorithmFacts] = {}
BUILTIN_RECIPES: dict[str, str] = {}
BUILTIN_FORMATS: dict[str, str] = {}
"""Format -> where it lives, as an import string: a config can be checked without importing any of them."""


def builtin_algorithms() -> Mapping[str, AlgorithmFacts]:
    """Those that come with the package, by name."""
    return BUILTIN_ALGORITHMS


ALGORITHMS: Registry[AlgorithmRecipe] = Registry("algo", "rl_training.algorithms", BUILTIN_RECIPES)

algorithm_names = ALGORITHMS.names


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
