"""YAML with the surprises removed: `1e-4` is a number, and a key that is written twice is a mistake.

A file may come from anybody: its size, its nesting and what its aliases stand for are limited before time or
memory is spent on them.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from rl_training.core.errors import ConfigError

# YAML 1.1, which PyYAML follows, wants a dot before and a sign in the exponent: 1e-4 would be text there.
_EXPONENT_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")

MAX_BYTES = 2**18
"""Of one document; the longest packaged config has a hundredth of it."""
MAX_DEPTH = 50
"""Lists and mappings inside each other."""
MAX_NODES = 100_000
"""Values of a document with every alias written out."""


class _Loader(yaml.SafeLoader):
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.depth >= MAX_DEPTH:
            problem = f"nested more than {MAX_DEPTH} levels deep"
            raise yaml.composer.ComposerError(None, None, problem, parent.start_mark if parent else None)
        self.depth += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def get_single_node(self) -> yaml.Node | None:
        node: yaml.Node | None = super().get_single_node()
        if node is not None:
            _expanded_size(node, {})
        return node

    def construct_scalar(self, node: Any) -> Any:
        value = super().construct_scalar(node)
        if not isinstance(value, str) or value.isascii():
            return value
        try:  # JSON writes a character beyond 16 bits as two escapes, which YAML takes for two characters
            return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
        except UnicodeDecodeError:
            problem = "holds half a character (a lone surrogate)"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark) from None

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[object, object]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                problem = f"key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def _expanded_size(node: yaml.Node, known: dict[int, int | None]) -> int:
    """Values that the node stands for, aliases written out; too many, or no end of them, is refused."""
    if id(node) in known:
        size = known[id(node)]
        if size is None:
            raise yaml.composer.ComposerError(None, None, "an alias stands for itself", node.start_mark)
        return size
    known[id(node)] = None
    size = 1
    for item in node.value if isinstance(node, yaml.CollectionNode) else ():
        for part in item if isinstance(item, tuple) else (item,):
            size += _expanded_size(part, known)
    if size > MAX_NODES:
        problem = f"its aliases stand for more than {MAX_NODES} values"
        raise yaml.composer.ComposerError(None, None, problem, node.start_mark)
    known[id(node)] = size
    return size


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as a number, and keeps lists on one line."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT_NUMBER, list("-+.0123456789"))
_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)


def read_yaml(path: Path) -> object:
    """Parse a file; an unreadable one raises `OSError`, any other a `ConfigError`."""
    return parse_yaml(read_yaml_text(path), str(path))


def read_yaml_text(path: Path) -> str:
    """The text of a file that is not too long for a document."""
    with path.open("rb") as file:
        found = file.read(MAX_BYTES + 1)
    _refuse_long(len(found), str(path))
    try:
        return found.decode("utf-8")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not YAML: it is not text in UTF-8") from None


def _refuse_long(size: int, source: str) -> None:
    if size > MAX_BYTES:
        raise ConfigError(f"{source} is too long for a YAML document of ours: more than {MAX_BYTES} bytes")


def parse_yaml(text: str, source: str) -> Any:
    """Parse one YAML document; `source` names it in the error."""
    _refuse_long(len(text), source)
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{source} is not valid YAML: line {line}: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None


def dump_yaml(values: object) -> str:
    """Write plain data in the order given."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
