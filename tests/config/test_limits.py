"""What a file may ask for: limits that hold before memory or time is spent."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers import ROOT
from rl_training.config.run import load_config, parse_config
from rl_training.config.yaml import MAX_BYTES, MAX_DEPTH, MAX_NODES, parse_yaml
from rl_training.core.errors import ConfigError
from rl_training.core.files import parse_json
from rl_training.core.schema import MAX_BATCH, MAX_LAYERS, MAX_SEEDS, MAX_WIDTH


def bomb(lines: int, merge: str = "") -> str:
    """Every line stands for ten of the line before it."""
    text = "a0: &a0 {x: 1}\n" if merge else "a0: &a0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]\n"
    for index in range(1, lines):
        parts = ", ".join([f"*a{index - 1}"] * 10)
        text += f"a{index}: &a{index} {{'<<': [{parts}]}}\n" if merge else f"a{index}: &a{index} [{parts}]\n"
    return text.replace("'<<'", "<<")


@pytest.mark.parametrize("text", [bomb(9), bomb(9, "<<"), bomb(200)])
def test_an_alias_bomb_is_refused_at_once(text: str, tmp_path: Path) -> None:
    started = time.perf_counter()
    path = tmp_path / "bomb.yaml"
    path.write_text(f"algo: sac\n{text}")
    with pytest.raises(ConfigError, match="its aliases stand for more than 100000 values") as caught:
        load_config(path)
    assert "\n" not in str(caught.value)
    assert time.perf_counter() - started < 2.0


def test_aliases_below_the_limit_are_read() -> None:
    values = parse_yaml(bomb(4), "x")  # 10 + 100 + 1000 + 10000 ones
    assert len(values["a3"]) == 10
    assert values["a3"][9][9][9] == [1] * 10


def test_an_alias_of_itself_is_refused() -> None:
    with pytest.raises(ConfigError, match="x is not valid YAML: line 1: an alias stands for itself"):
        parse_yaml("a: &a [*a]", "x")


@pytest.mark.slow
def test_many_plain_values_are_refused() -> None:
    with pytest.raises(ConfigError, match="more than 100000 values"):
        parse_yaml("[" + "1," * MAX_NODES + "]", "x")


def test_nesting_is_limited() -> None:
    assert parse_yaml("[" * (MAX_DEPTH - 1) + "1" + "]" * (MAX_DEPTH - 1), "x") is not None
    for opening in ("[", "{a: ", "- "):
        with pytest.raises(ConfigError, match="nested more than 50 levels deep"):
            parse_yaml(opening * 5000 + "1", "x")
    with pytest.raises(ConfigError, match="nested more than 50 levels deep"):
        parse_yaml("[" * MAX_DEPTH + "1" + "]" * MAX_DEPTH, "x")


def test_the_size_of_a_document_is_limited(tmp_path: Path) -> None:
    path = tmp_path / "long.yaml"
    path.write_text("algo: sac # " + "x" * MAX_BYTES)
    message = f"long.yaml is too long for a YAML document of ours: more than {MAX_BYTES} bytes"
    with pytest.raises(ConfigError, match=message):
        load_config(path)
    with pytest.raises(ConfigError, match="--set x is too long"):
        load_config("sac/pendulum", ["x=" + "1" * (MAX_BYTES + 1)])


def test_json_without_end_is_a_value_error() -> None:
    assert parse_json('{"a": [1]}') == {"a": [1]}
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"batch_size": MAX_BATCH + 1}, "algo_kwargs.batch_size must be at most 1000000, got 1000001"),
        ({"batch_size": 10**400}, "algo_kwargs.batch_size must be at most 1000000, got 1" + "0" * 400),
        (
            {"buffer_capacity": 10**12},
            "algo_kwargs.buffer_capacity must be at most 1000000000, got 1000000000000",
        ),
        (
            {"hidden_sizes": [64, MAX_WIDTH + 1]},
            "algo_kwargs.hidden_sizes[1] must be at most 16384, got 16385",
        ),
        (
            {"hidden_sizes": [4] * (MAX_LAYERS + 1)},
            "algo_kwargs.hidden_sizes must have at most 64 entries, got 65",
        ),
        ({"num_critics": 1001}, "algo_kwargs.num_critics must be at most 1000, got 1001"),
    ],
)
def test_sizes_are_bounded(settings: dict[str, object], line: str) -> None:
    config = {"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 10, "algo_kwargs": settings}
    with pytest.raises(ConfigError) as caught:
        parse_config(config)
    assert str(caught.value) == line


def test_seeds_are_bounded() -> None:
    config = {"algo": "sac", "env_id": "Pendulum-v1", "total_timesteps": 10}
    assert parse_config({**config, "seeds": list(range(MAX_SEEDS))}).seeds is not None
    with pytest.raises(ConfigError, match="seeds must have at most 1000 entries, got 1001"):
        parse_config({**config, "seeds": list(range(MAX_SEEDS + 1))})


SMALL_MACHINE = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
from rl_training.cli import main
for words in sys.argv[2:]:
    print(main(["train", "--steps", "50", "--quiet", "--output-dir", sys.argv[1], *words.split()]))
"""


@pytest.mark.slow
def test_what_is_too_large_for_the_memory_is_named(tmp_path: Path) -> None:
    wide = "--set algo_kwargs.hidden_sizes="
    asked = {
        "--config sac/pendulum --set algo_kwargs.buffer_capacity=1000000000": "buffer_capacity",
        f"--config sac/pendulum {wide}[16384,16384,16384]": "hidden_sizes",
        f"--config td3_bc/pendulum {wide}[2048] --set algo_kwargs.batch_size=1000000": "batch_size",
    }
    done = subprocess.run(
        [sys.executable, "-c", SMALL_MACHINE, str(tmp_path), *asked],
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.stdout.split() == ["2"] * 3, done.stdout + done.stderr
    for line, setting in zip(done.stderr.splitlines(), asked.values(), strict=True):
        assert re.fullmatch(rf"error: not enough memory for .* GiB wanted at once\); .*{setting}.*", line)
