"""Static rules that keep the package small: dependencies point one way, nothing private crosses modules."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src"
ROOT = "rl_training"
MAX_LINES = 300
MAX_RECIPE_LINES = 40

# A module may import its own layer part and every layer below. Parts of one layer do not know each other.
LAYERS = (
    {"leaves"},
    {"models", "data"},
    {"algorithms"},
    {"runtime"},
    {"managers", "export"},
    {"api"},
    {"cli"},
    {"entry"},
)
MANAGERS = ("default_manager", "sweeps")

FORBIDDEN_TEXT = re.compile(r"pickle|torch\.(?:load|save)\b|(?<![.\w])(?:eval|exec)\(")


def part_of(module: str) -> str:
    """The part of the package that a dotted module name belongs to."""
    names = module.split(".")
    if len(names) == 1 or names[1] == "__main__":
        return "entry"
    if names[1] == "experiment":
        return "managers" if len(names) > 2 and names[2] in MANAGERS else "leaves"
    known_parts = set().union(*LAYERS)
    return names[1] if names[1] in known_parts else "leaves"


def may_import(importer: str, imported: str) -> bool:
    """Whether the layers allow one part to import another."""
    level = {part: depth for depth, layer in enumerate(LAYERS) for part in layer}
    return importer == imported or level[imported] < level[importer]


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
    found = []
    for path in paths:
        importer = module_name(path, source)
        for imported, name in our_imports(ast.parse(path.read_text()), modules):
            if not may_import(part_of(importer), part_of(imported)):
                found.append(f"{importer} ({part_of(importer)}) imports {imported} ({part_of(imported)})")
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


def test_a_trainer_is_a_recipe() -> None:
    assert too_long(sorted((SOURCE / ROOT / "runtime").glob("*_trainer.py")), MAX_RECIPE_LINES) == []


@pytest.mark.parametrize(
    ("importer", "statement", "complaint"),
    [
        ("models/net.py", "from rl_training.data.buffer import Buffer", "models) imports rl_training.data"),
        ("experiment/config.py", "def f():\n    import rl_training.runtime.loop", "leaves) imports"),
        (
            "algorithms/sac.py",
            "from rl_training.runtime import loop",
            "algorithms) imports rl_training.runtime.loop",
        ),
        ("errors.py", "from rl_training import api", "leaves) imports rl_training.api"),
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
    for name, text in sources.items():
        (tmp_path / ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / ROOT / name).write_text(text)
    (found,) = layer_violations(tmp_path)
    assert complaint in found


@pytest.mark.parametrize("line", ["import pickle", "x = torch.load(path)", "y = eval(text)", "exec(code)"])
def test_the_text_check_sees_a_violation(tmp_path: Path, line: str) -> None:
    (tmp_path / "module.py").write_text(f"model.eval()\nretrieval(x)\n{line}\n")
    assert lines_with_forbidden_text(tmp_path) == [f"module.py:3: {line}"]
