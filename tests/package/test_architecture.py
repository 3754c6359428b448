"""Static rules that keep the package small: dependencies point one way, nothing private crosses modules."""

import ast
import re
import runpy
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src"
ROOT = "rl_training"
MAX_LINES = 600
MAX_DOOR_LINES = 8

# The rooms of docs/design.md, from the ground up, each with the rooms that it may import beside itself.
GROUND = ("core", "config")
ROOMS: dict[str, tuple[str, ...]] = {
    "core": (),
    "config": ("core",),
    "models": GROUND,
    "policies": (*GROUND, "models"),
    "data": GROUND,
    "algorithms": (*GROUND, "models", "policies"),
}
ROOMS["runtime"] = tuple(ROOMS)
ROOMS["judging"] = tuple(ROOMS)
ROOMS["runs"] = tuple(ROOMS)
ROOMS["sweeps"] = ROOMS["report"] = (*ROOMS["runs"], "runs")
ROOMS["recommend"] = (*ROOMS["runs"], "runs", "sweeps", "report")
ROOMS["serve"] = (*GROUND, "policies", "report")
ROOMS["studio"] = (*ROOMS["recommend"], "recommend", "serve")
ROOMS["demo"] = tuple(ROOMS)
ROOMS["api"] = tuple(ROOMS)
ROOMS["cli"] = tuple(ROOMS)
ROOMS["doors"] = tuple(ROOMS)
"""What is named for users alone, and looks anywhere: nothing inside a room imports it."""

FORBIDDEN_TEXT = re.compile(r"pickle|torch\.(?:load|save)\b|(?<![.\w])(?:eval|exec)\(")
MODULE_IN_TEXT = re.compile(rf"({ROOT}(?:\.\w+)+)(?::(\w+)|\.)?")


@dataclass
class Module:
    """A source file: its room, and what it imports of this package, as (module, name), in whatever way."""

    name: str
    tree: ast.Module
    room: str = ""
    imports: set[tuple[str, str | None]] = field(default_factory=set)

    @property
    def is_door(self) -> bool:
        return (ast.get_docstring(self.tree) or "").startswith("Door:")


@cache
def read_modules(source: Path) -> dict[str, Module]:
    """Every source file by its dotted name."""
    modules = {}
    alone = (path for path in source.rglob("*.pyi") if not path.with_suffix(".py").exists())  # types only
    for path in sorted([*source.rglob("*.py"), *alone]):
        parts = path.relative_to(source).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        modules[name] = Module(name, ast.parse(path.read_text()))
    packages = {path.parent.name for path in source.glob(f"{ROOT}/*/__init__.py")}
    for module in modules.values():
        module.room = room_of(module, modules, packages)
        module.imports = {*statements(module, modules), *texts(module, modules)}
    return modules


def room_of(module: Module, modules: dict[str, Module], packages: set[str]) -> str:
    """The package below the root that a module lies in; doors and what lies beside them are above all."""
    names = module.name.split(".")
    inside = len(names) > 1 and names[1] in packages
    return names[1] if inside and not (module.is_door or modules[f"{ROOT}.{names[1]}"].is_door) else "doors"


def statements(module: Module, modules: dict[str, Module]) -> Iterator[tuple[str, str | None]]:
    """Import statements, also inside functions and for type checkers alone."""
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.module and not node.level, f"{module.name} must name modules in full"
            inside = [(f"{node.module}.{alias.name}", alias.name) for alias in node.names]
            names = [(whole, None) if whole in modules else (node.module, name) for whole, name in inside]
        else:
            continue
        yield from ((imported, name) for imported, name in names if imported.split(".")[0] == ROOT)


def texts(module: Module, modules: dict[str, Module]) -> Iterator[tuple[str, str | None]]:
    """Strings that are `package.module`, `package.module:name` or begin so: something imports by them."""
    groups = set()  # an entry-point group, the second argument of a registry, has the form of a module only
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "Registry":
            groups.add(id(node.args[1]))
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in groups:
            found = MODULE_IN_TEXT.fullmatch(node.value)
            names = found[1].split(".") if found else []
            ends = [end for end in range(2, len(names) + 1) if ".".join(names[:end]) in modules]
            if found and ends:
                yield ".".join(names[: ends[-1]]), found[2] or (names[ends[-1] :] or [None])[0]


def layer_violations(modules: dict[str, Module]) -> list[str]:
    """Imports that point upwards or sideways, and private names that leave their module."""
    found = []
    for module in modules.values():
        for imported, name in sorted(module.imports, key=str):
            room = modules[imported].room if imported in modules else "no module"
            if room != module.room and room not in ROOMS[module.room]:
                found.append(f"{module.name} ({module.room}) imports {imported} ({room})")
            if name and name.startswith("_") and imported != module.name:
                found.append(f"{module.name} imports the private name {imported}.{name}")
    return found


def import_cycles(modules: dict[str, Module]) -> list[str]:
    """Groups of modules of which each needs, directly or through others, all the rest."""
    needs = {name: reachable(name, modules) for name in modules}
    groups = {
        tuple(sorted(other for other in needs[name] if name in needs[other]))
        for name in modules
        if name in needs[name]
    }
    return [" and ".join(group) + " import each other" for group in sorted(groups)]


def reachable(start: str, modules: dict[str, Module]) -> set[str]:
    """What a module imports, and what that imports; itself too if it comes back to it."""
    found: set[str] = set()
    waiting = [start]
    while waiting:
        name = waiting.pop()
        new = {imported for imported, _ in modules[name].imports if imported in modules} - {name} - found
        found |= new
        waiting += new
    return found


def lines_with_forbidden_text(source: Path) -> list[str]:
    """Places that could run code from a file or a string."""
    return [
        f"{path.relative_to(source)}:{number}: {line.strip()}"
        for path in sorted(source.rglob("*.py"))
        for number, line in enumerate(path.read_text().splitlines(), start=1)
        if FORBIDDEN_TEXT.search(line)
    ]


def too_long(paths: list[Path], limit: int) -> list[str]:
    """Files with more lines than the limit."""
    lengths = {path.name: len(path.read_text().splitlines()) for path in paths}
    return [f"{name}: {length} lines (limit {limit})" for name, length in lengths.items() if length > limit]


def test_dependencies_point_one_way_and_private_names_stay_private() -> None:
    modules = read_modules(SOURCE)
    assert layer_violations(modules) == [] and import_cycles(modules) == []


def test_nothing_in_the_package_can_run_code_from_data() -> None:
    assert lines_with_forbidden_text(SOURCE) == []


def test_files_stay_readable() -> None:
    assert too_long(sorted(SOURCE.rglob("*.py")), MAX_LINES) == []


def test_a_door_is_a_door() -> None:
    doors = [*(SOURCE / ROOT / "runtime").glob("*_trainer.py"), SOURCE / ROOT / "runtime" / "workflows.py"]
    assert len(doors) > 10 and too_long(sorted(doors), MAX_DOOR_LINES) == []
    assert {read_modules(SOURCE)[f"{ROOT}.runtime.{door.stem}"].room for door in doors} == {"doors"}


def test_every_package_is_a_room_of_the_house() -> None:
    assert {module.room for module in read_modules(SOURCE).values()} <= ROOMS.keys()


HOUSE = {
    "runtime/loop.py": "",
    "runtime/sac_trainer.py": '"""Door: training."""\nfrom rl_training.runs.train import train\n',
    "runs/train.py": "from rl_training.runtime import loop\nPACKAGE = 'rl_training'\n",
    "experiment/__init__.py": '"""Door: runs."""',
    "experiment/manager.py": "from rl_training.runs.train import train",
    "data/buffer.py": "from rl_training.core.errors import Problem",
    "models/net.py": "NETS = Registry('net', 'rl_training.models', {'mlp': 'rl_training.models.net:Net'})",
    "core/errors.py": "",
    "api/__init__.py": "lazy_exports({'train': 'rl_training.runs.train'})",
    "cli/main.py": "from rl_training.api import train",
    "builtin.py": "ALGORITHMS = {'sac': 'rl_training.algorithms.sac:RECIPE'}",
    "algorithms/sac.py": "RECIPE = 1",
}
"""A small house in order, with everything in it that could be taken for a violation."""


def build_house(folder: Path, changes: dict[str, str]) -> dict[str, Module]:
    files = HOUSE | changes
    packages = {f"{Path(name).parent}/__init__.py": "" for name in files if "/" in name}
    for name, text in (
        packages | {"__init__.py": "from rl_training.builtin import ALGORITHMS"} | files
    ).items():
        path = folder / ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return read_modules(folder)


def test_a_house_in_order_is_in_order(tmp_path: Path) -> None:
    modules = build_house(tmp_path, {})
    assert layer_violations(modules) == [] and import_cycles(modules) == []


@pytest.mark.parametrize(
    ("importer", "text", "complaint"),
    [
        ("models/net.py", "from rl_training.data.buffer import Buffer", "models) imports rl_training.data"),
        ("data/config.py", "def f():\n    import rl_training.runtime.loop", "data) imports"),
        ("data/config.py", "if TYPE_CHECKING:\n    import rl_training.runtime.loop", "data) imports"),
        ("algorithms/a.py", "from rl_training.runtime import loop", "imports rl_training.runtime.loop"),
        ("core/files.py", "from rl_training import api", "core) imports rl_training.api (api)"),
        ("core/files.py", "import rl_training", "core) imports rl_training (doors)"),
        ("core/files.py", "import_module('rl_training.runs.train')", "core) imports rl_training.runs.train"),
        ("core/files.py", "x = 'rl_training.runs.train.train'", "core) imports rl_training.runs.train"),
        ("core/files.py", "x = f'rl_training.algorithms.{name}:RECIPE'", "imports rl_training.algorithms ("),
        ("config/data.py", "X = {'csv': 'rl_training.data.buffer:CSV'}", "config) imports rl_training.data"),
        (
            "runs/more.py",
            "from rl_training.experiment import manager",
            "rl_training.experiment.manager (doors)",
        ),
        ("cli/more.py", "from rl_training.runtime.sac_trainer import train", "runtime.sac_trainer (doors)"),
        ("cli/more.py", "from rl_training.models.gone import Net", "rl_training.models.gone (no module)"),
        (
            "cli/more.py",
            "from rl_training.models.net import _private",
            "name rl_training.models.net._private",
        ),
        ("cli/more.py", "x = 'rl_training.models.net:_private'", "name rl_training.models.net._private"),
    ],
)
def test_the_layer_check_sees_a_violation(tmp_path: Path, importer: str, text: str, complaint: str) -> None:
    (found,) = layer_violations(build_house(tmp_path, {importer: text}))
    assert complaint in found


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("from rl_training.data.disk import x", "from rl_training.data.log import y"),
        ("from rl_training.data.disk import x", "def f():\n    from rl_training.data import log"),
        ("if TYPE_CHECKING:\n    from rl_training.data.disk import x", "import rl_training.data.log"),
        ("import rl_training.data.disk", "LOG = 'rl_training.data.log:Log'"),
        ("import rl_training.data.between", "import rl_training.data.log"),
    ],
)
def test_the_layer_check_sees_a_cycle(tmp_path: Path, one: str, other: str) -> None:
    changes = {"data/log.py": one, "data/disk.py": other, "data/between.py": "import rl_training.data.disk"}
    modules = build_house(tmp_path, changes)
    (found,) = import_cycles(modules)
    assert "rl_training.data.disk and rl_training.data.log" in found
    assert layer_violations(modules) == []


@pytest.mark.parametrize("line", ["import pickle", "x = torch.load(path)", "y = eval(text)", "exec(code)"])
def test_the_text_check_sees_a_violation(tmp_path: Path, line: str) -> None:
    (tmp_path / "module.py").write_text(f"model.eval()\nretrieval(x)\n{line}\n")
    assert lines_with_forbidden_text(tmp_path) == [f"module.py:3: {line}"]


@pytest.mark.parametrize("part", ["runtime", "judging"])
def test_planted_faults_fit_the_sources(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """`benchmarks/faults/mutants.py` plants them one by one, and would stop at one whose text is gone."""
    folder = SOURCE.parent / "benchmarks" / "faults"
    monkeypatch.syspath_prepend(str(folder))
    faults = runpy.run_path(str(folder / f"{part}_faults.py"))["FAULTS"]
    texts = {fault.file: (SOURCE / ROOT / fault.file).read_text() for fault in faults}
    assert [fault.breaks for fault in faults if texts[fault.file].count(fault.old) != 1] == []
    assert len(faults) >= 20
