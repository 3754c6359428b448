"""YAML with the surprises removed: `1e-4` is a number, and a key that is written twice is a mistake."""

from __future__ import annotations

import re
from typing import Any

import yaml

from rl_training.config.errors import ConfigError

# YAML 1.1, which PyYAML follows, wants a dot before and a sign in the exponent: 1e-4 would be text there.
_EXPONENT_NUMBER = re.compile(r"[-+]?(?:\d[\d_]*\.?[\d_]*|\.\d[\d_]*)[eE][-+]?\d+$")


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key_node, _ in node.value:
            key = str(key_node.value)
            if key in seen:
                problem = f"key {key!r} is given twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key_node.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


class _Dumper(yaml.SafeDumper):
    """Quotes text that `_Loader` would read as a number, and keeps lists on one line."""


for _side in (_Loader, _Dumper):
    _side.add_implicit_resolver("tag:yaml.org,2002:float", _EXPONENT_NUMBER, list("-+.0123456789"))
_Dumper.add_representer(
    list, lambda dumper, items: dumper.represent_sequence("tag:yaml.org,2002:seq", items, flow_style=True)
)


def parse_yaml(text: str, source: str) -> Any:
    """Parse one YAML document; `source` names it in the error."""
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigError(f"{source} is not valid YAML: line {line}: {error.problem}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ConfigError(f"{source} is not valid YAML: {' '.join(str(error).split())}") from None


def dump_yaml(values: Any) -> str:
    """Write plain data in the order given."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True)
