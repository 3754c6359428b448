"""The documentation does what it says: its code runs, its site builds, its table of algorithms is true.

All Python blocks of a page run as one program in an empty directory. Of a `bash` block, the lines that
start with `rl-training` run through the command line's `main`, after the Python blocks that begin with `# an
example log`. Blocks that are not meant to run are fenced
as `text` or `yaml`. Budgets are shortened first (see `SHORTER`), so that a page takes about a second.
"""

import os
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from doc_blocks import PAGES, blocks
from helpers import ROOT, TINY_STAGES
from rl_training.cli import main
from rl_training.core.registry import algorithm_facts, builtin_algorithms

SHORTER = (
    (r"total_timesteps=10_000", "total_timesteps=120"),
    (r"total_timesteps=12_000", "total_timesteps=140"),
    (r"--total-timesteps 12000", "--total-timesteps 140"),
    (r'"learning_starts": \d+', '"learning_starts": 100'),
    (r"num_episodes=\d+", "num_episodes=1"),
    (r"--episodes \d+", "--episodes 1"),
)
EXAMPLE_LOG = "# an example log"
TOLD = pytest.mark.filterwarnings("default::rl_training.data.reading.DataWarning")
"""What a page's reader is told about the data is no mistake."""
PACKAGED = re.compile(r'load_config\("(\w+/\w+)"\)')


def shortened(text: str) -> str:
    """The same example with a budget of seconds."""
    for pattern, replacement in SHORTER:
        text = re.sub(pattern, replacement, text)
    return PACKAGED.sub(lambda call: f'load_config("{call[1]}", {short_run(call[1])})', text)


def short_run(config: str) -> list[str]:
    """Overrides that make a run of a config last about a second."""
    overrides = ["total_timesteps=120", "eval_episodes=1"]
    overrides += ["algo_kwargs.batch_size=32", "algo_kwargs.hidden_sizes=[16, 16]"]
    name = config.partition("/")[0]
    overrides += [f"algo_kwargs.{each}={value}" for each, value in TINY_STAGES.get(name, {}).items()]
    algorithm = algorithm_facts(name)
    if algorithm is not None:
        own = "learning_starts=100" if algorithm.online else "dataset_size=400"
        overrides.append(f"algo_kwargs.{own}")
    return overrides


def pages_with(language: str) -> list[object]:
    """The pages that have such blocks, as named test parameters."""
    return [pytest.param(page, id=str(page.relative_to(ROOT))) for page in PAGES if blocks(page, language)]


@pytest.mark.slow
@TOLD
@pytest.mark.parametrize("page", pages_with("python"))
def test_python_blocks_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "page.py"
    program.write_text(shortened("\n".join([*blocks(page, "python"), "reached_the_end = True\n"])))
    assert runpy.run_path(str(program), run_name="__main__")["reached_the_end"]


@pytest.mark.slow
@TOLD
@pytest.mark.parametrize("page", pages_with("bash"))
def test_commands_run(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines = [line for block in blocks(page, "bash") for line in block.splitlines()]
    commands = [line for line in lines if line.startswith("rl-training ")]
    for block in blocks(page, "python"):
        if block.startswith(EXAMPLE_LOG):
            exec(compile(block, str(page), "exec"), {})
    assert commands, f"{page.name} has bash blocks without a command to run"
    for command in commands:
        assert main(arguments_of(command)) == 0, command


def arguments_of(command: str) -> list[str]:
    """The arguments of a documented command; a training run is made short."""
    arguments = shlex.split(shortened(command), comments=True)[1:]
    if arguments[0] == "train":
        config = arguments[arguments.index("--config" if "--config" in arguments else "--algo") + 1]
        for override in short_run(config):
            given = [each for each in arguments if each.startswith(override.partition("=")[0] + "=")]
            for each in given:  # one value for each setting
                arguments[arguments.index(each)] = override
            arguments += [] if given else ["--set", override]
    return arguments


@pytest.mark.slow
def test_site_builds_without_a_warning(tmp_path: Path) -> None:
    command = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--quiet",
        "--site-dir",
        str(tmp_path / "site"),
    ]
    environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "site" / "algorithms" / "sac" / "index.html").read_text(encoding="utf-8")
    assert "target_entropy" in page and "<!-- settings" not in page


def test_readme_claims_exactly_the_algorithms_that_exist() -> None:
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\|[^|]*\| `(\w+)` \| `(\w+)` \| (?:data|interaction) \|", readme, re.MULTILINE)
    assert len(rows) == len(builtin_algorithms())
    assert dict(rows) == {name: entry.class_name for name, entry in builtin_algorithms().items()}


def test_formulas_become_mathml_and_code_stays_code() -> None:
    hooks = runpy.run_path(str(ROOT / "docs" / "hooks.py"))
    page = "| `$x$` | $Q_i(s', a)$ | costs $5 or $6 |\n```text\necho $seed $HOME$\n```\n"
    html = hooks["on_page_content"](hooks["on_page_markdown"](page))
    assert html.count("<math") == 1 and "<mi>Q</mi>" in html and "Q_i" not in html
    for untouched in ("`$x$`", "costs $5 or $6", "echo $seed $HOME$"):
        assert untouched in html
