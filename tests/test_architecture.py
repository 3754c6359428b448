"""Static rules that keep the package small: dependencies point one way, nothing private crosses modules."""

import ast
import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
ROOT = "rl_training"
MAX_LINES = 300
MAX_DOOR_LINES = 8

# The rooms of docs/design.md, from the ground up, each with the rooms that it may import beside itself.
GROUND = ("config", "core")
ROOMS: dict[str, tuple[str, ...]] = {
    "config": (),
    "core": ("config",),
    "models": GROUND,
    "policies": (*GROUND, "models"),
    "data": GROUND,
    "algorithms": (*GROUND, "models", "policies"),
}
ROOMS["runtime"] = tuple(ROOMS)
ROOMS["judging"] = tuple(ROOMS)
ROOMS["experiment"] = tuple(ROOMS)
ROOMS["sweeps"] = ROOMS["report"] = (*ROOMS["experiment"], "experiment")
ROOMS["api"] = tuple(ROOMS)
ROOMS["cli"] = tuple(ROOMS)
ROOMS["package"] = tuple(ROOMS)

FORBIDDEN_TEXT = re.compile(r"pickle|torch\.(?:load|save)\b|(?<![.\w])(?:eval|exec)\(")


def room_of(module: str, packages: set[str]) -> str:
    """The package below the root that a module lies in; what lies beside them is the package itself."""
    names = module.split(".")
    return names[1] if len(names) > 1 and ".".join(names[:2]) in packages else "package"


def may_import(importer: str, imported: str) -> bool:
    return importer == imported or imported in ROOMS[importer]


def module_name(path: Path, source: Path) -> str:
    """The dotted name of a source file."""
    names = path.relative_to(source).with_suffix("").parts
    return ".".join(names[:-1] if names[-1] == "__init__" else names)


def our_imports(tree: ast.AST, modules: set[str]) -> Iterator[tuple[str, str | None]]:
    """(module, name) of every import from this package, wherever in the file it stands."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [(alias.name, None) for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            inside = [(f"{node.module}.{alias.name}", alias.name) for alias in node.names]
            names = [(whole, None) if whole in modules else (node.module, name) for whole, name in inside]
        else:
            continue
        yield from ((module, name) for module, name in names if module.split(".")[0] == ROOT)


def layer_violations(source: Path) -> list[str]:
    """Imports that point upwards or sideways, and private names that leave their module."""
    paths = sorted(source.rglob("*.py"))
    modules = {module_name(path, source) for path in paths}
    packages = {module_name(path, source) for path in paths if path.name == "__init__.py"}
    found = []
    for path in paths:
        importer = module_name(path, source)
        for imported, name in our_imports(ast.parse(path.read_text()), modules):
            rooms = room_of(importer, packages), room_of(imported, packages)
            if not may_import(*rooms):
                found.append(f"{importer} ({rooms[0]}) imports {imported} ({rooms[1]})")
            if name and name.startswith("_"):
                found.append(f"{importer} imports the private name {imported}.{name}")
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
    assert layer_violations(SOURCE) == []


def test_nothing_in_the_package_can_run_code_from_data() -> None:
    assert lines_with_forbidden_text(SOURCE) == []


def test_files_stay_readable() -> None:
    assert too_long(sorted(SOURCE.rglob("*.py")), MAX_LINES) == []


def test_a_door_is_a_door() -> None:
    doors = [*(SOURCE / ROOT / "runtime").glob("*_trainer.py"), SOURCE / ROOT / "runtime" / "workflows.py"]
    assert len(doors) > 10 and too_long(sorted(doors), MAX_DOOR_LINES) == []


def test_every_package_is_a_room_of_the_house() -> None:
    packages = {path.name for path in (SOURCE / ROOT).iterdir() if (path / "__init__.py").exists()}
    assert packages <= ROOMS.keys()


@pytest.mark.parametrize(
    ("importer", "statement", "complaint"),
    [
        ("models/net.py", "from rl_training.data.buffer import Buffer", "models) imports rl_training.data"),
        ("data/config.py", "def f():\n    import rl_training.runtime.loop", "data) imports"),
        (
            "algorithms/sac.py",
            "from rl_training.runtime import loop",
            "algorithms) imports rl_training.runtime.loop",
        ),
        ("core/errors.py", "from rl_training import api", "core) imports rl_training.api"),
        (
            "cli/main.py",
            "from rl_training.models.net import _private",
            "private name rl_training.models.net._private",
        ),
    ],
)
def test_the_layer_check_sees_a_violation(
    tmp_path: Path, importer: str, statement: str, complaint: str
) -> None:
    sources = {
        "runtime/loop.py": "",
        "data/buffer.py": "",
        "models/net.py": "",
        "api/__init__.py": "",
        importer: statement,
    }
    sources |= {f"{name.partition('/')[0]}/__init__.py": "" for name in sources if "/" in name}
    for name, text in sources.items():
        (tmp_path / ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ROOT / name).write_text(text)
    (found,) = layer_violations(tmp_path)
    assert complaint in found


@pytest.mark.parametrize("line", ["import pickle", "x = torch.load(path)", "y = eval(text)", "exec(code)"])
def test_the_text_check_sees_a_violation(tmp_path: Path, line: str) -> None:
    (tmp_path / "module.py").write_text(f"model.eval()\nretrieval(x)\n{line}\n")
    assert lines_with_forbidden_text(tmp_path) == [f"module.py:3: {line}"]


def test_planted_faults_fit_the_sources() -> None:
    """`benchmarks/mutants.py` plants them one by one, and would stop at one whose text is gone."""
    faults = runpy.run_path(str(SOURCE.parent / "benchmarks" / "runtime_faults.py"))["FAULTS"]
    texts = {fault.file: (SOURCE / ROOT / fault.file).read_text() for fault in faults}
    assert [fault.breaks for fault in faults if texts[fault.file].count(fault.old) != 1] == []
    assert len(faults) >= 20
