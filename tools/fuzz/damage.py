"""How good files are broken: bytes, cells of text, entries of trees, and configs made of odd values."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as fixed_seed
from hypothesis import strategies as st

CANARY = "fuzz_canary"
"""A module that notes when somebody imports it."""
ODD_VALUES: tuple[Any, ...] = (
    *(None, True, -1, 0, 2, 10**30, 1.5, float("nan"), float("inf"), -1e308, "", "x", "\x00", "a\nb"),
    *(f"{CANARY}:Env-v0", "../outside/secret.csv", "*", "/dev/zero", [], [1, "a"], [[]], {}, {"a": 1}),
    *({"$tensor": "torch"}, {"$float": "nan"}, "9" * 400, [0] * 5000),
)
ODD_CELLS = (
    "",
    "nan",
    "-inf",
    "1e999",
    "1e-400",
    "0x10",
    '"',
    '"",',
    "true",
    "\x00",
    "é",
    "=1+1",
    "1,2",
    "\n",
    ";",
)


def damaged_bytes(good: bytes, rng: random.Random) -> bytes:
    """Some bytes replaced, now and then also cut off or doubled."""
    data = bytearray(good[: rng.randrange(len(good))] if rng.random() < 0.2 else good)
    for _ in range(rng.choice([1, 3, 20])):
        if data:
            data[rng.randrange(len(data))] = rng.randrange(256)
    if rng.random() < 0.1:
        start = rng.randrange(len(good))
        data[start:start] = good[start : start + 64]
    return bytes(data)


def damaged_text(good: bytes, rng: random.Random) -> bytes:
    """A cell of a text table replaced, or a line gone or doubled."""
    lines = good.decode().split("\n")
    row = rng.randrange(len(lines))
    cells = lines[row].split(",")
    cells[rng.randrange(len(cells))] = rng.choice(ODD_CELLS)
    lines[row : row + rng.choice([1, 1, 1, 0, 2])] = [",".join(cells)]
    return "\n".join(lines).encode(errors="replace")


def damaged_json(good: bytes, rng: random.Random) -> bytes:
    """An entry of a JSON document gone or odd; now and then nested without end."""
    if rng.random() < 0.05:
        return b"[" * 100_000
    return json.dumps(damaged_tree(json.loads(good), rng)).encode()


def damaged_tree(tree: Any, rng: random.Random) -> Any:
    """A copy in which one entry, anywhere, is gone, added or something else."""
    changed = copy.deepcopy(tree)
    level = changed
    while True:
        keys = list(level) if isinstance(level, dict) else list(range(len(level)))
        if not keys:
            return changed
        key = rng.choice(keys)
        inner = level[key]
        if isinstance(inner, dict | list) and len(inner) and rng.random() < 0.75:
            level = inner
            continue
        action = rng.random()
        if action < 0.25:
            del level[key]
        elif action < 0.35 and isinstance(level, dict):
            level[f"{key}_2"] = rng.choice(ODD_VALUES)
        else:
            level[key] = rng.choice(ODD_VALUES)
        return changed


def odd_configs(count: int, seed: int, keys: list[str]) -> list[dict[str, Any]]:
    """Mappings of known and unknown keys to anything that YAML can hold, as hypothesis invents them."""
    leaves = st.one_of(
        *(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=20)),
        *(st.sampled_from(["sac", "iql", "Pendulum-v1", "auto"]), st.sampled_from(ODD_VALUES)),
    )

    def mappings(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
        return st.dictionaries(st.one_of(st.sampled_from(keys), st.text(max_size=8)), inner, max_size=5)

    values = st.recursive(
        leaves, lambda inner: st.one_of(st.lists(inner, max_size=4), mappings(inner)), max_leaves=8
    )
    found: list[dict[str, Any]] = []

    @fixed_seed(seed)
    @settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(mappings(values))
    def collect(values: dict[str, Any]) -> None:
        found.append(values)

    collect()
    return found
