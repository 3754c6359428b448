"""Every tutorial does what it says: its blocks run from top to bottom in one empty directory.

Python blocks share their names; the lines of `bash` blocks that start with `rl-training` run through the
command line's `main`, and those that end with `&` in a process of their own, on a free port. Budgets are
shortened.
"""

import os
import re
import shlex
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from doc_blocks import TUTORIALS, all_blocks
from helpers import ROOT, TINY_STAGES
from postgres import PASSWORD, PostgresServer, find_binaries
from rl_training.cli import main

SHORTER = (
    (r" --set algo_kwargs\.(hidden_sizes|\w+_updates|rollouts|horizon)=\S+", ""),
    (r"--steps \d+", "--steps 60 --set algo_kwargs.hidden_sizes=[16] --set algo_kwargs.batch_size=32"),
    (r"--timesteps \d+", "--timesteps 40 --set eval_episodes=1"),
    (r"--env-id", "--set eval_episodes=1 --env-id"),
    (r"in range\(120\):  # runs", "in range(24):  # runs"),
    (r"EPISODES = \d+", "EPISODES = 22"),
    (r"days=90", "days=24"),
    (r"days=30", "days=2"),
    (r"runs=60", "runs=24"),
    (r"runs=200", "runs=104"),  # a fifth is held out, and 20 are the least to judge by
    (r"--dial 0,0.5,1", "--dial 0,1"),
    (r"runs=500", "runs=20"),
)
JUDGE = (
    "--set updates=20 --set members=2 --set model_updates=20 --set model_members=2 --set density_updates=20 "
    "--set rollout_starts=20 --set hidden_sizes=[16]"
)
PORT = "8000"
DATABASE = "postgresql://plant@server/history"

pytestmark = [
    pytest.mark.slow,
    # what a reader is told about the data is no mistake
    pytest.mark.filterwarnings("default::rl_training.data.reading.DataWarning"),
]


def shortened(text: str) -> str:
    for pattern, replacement in SHORTER:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text


def commands(block: str) -> list[str]:
    """The commands of a block, one line each."""
    lines = block.replace("\\\n", " ").splitlines()
    return [re.sub(" +", " ", line) for line in lines if line.startswith("rl-training ")]


class Shell:
    """Runs blocks, and ends what runs beside them."""

    def __init__(self, page: Path, database: str) -> None:
        self.page, self.database = page, database
        self.names: dict[str, Any] = {"__name__": "__main__"}
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = str(free.getsockname()[1])
        self.running: list[subprocess.Popen[str]] = []

    def here(self, text: str) -> str:
        """With the budgets, port and database of this test."""
        return shortened(text).replace(f":{PORT}", f":{self.port}").replace(DATABASE, self.database)

    def program(self, block: str) -> None:
        exec(compile(self.here(block), str(self.page), "exec"), self.names)

    def command(self, line: str) -> None:
        words = shlex.split(self.here(line), comments=True)[1:]
        if words[0] == "judge":
            words += JUDGE.split()
        if words[0] == "train":
            stages = TINY_STAGES.get(words[words.index("--algo") + 1], {})
            words += [f"--set=algo_kwargs.{name}={value}" for name, value in stages.items()]
        if words[-1] == "&":
            self.start([*words[:-1], "--port", self.port])
        else:
            assert main(words) == 0, line

    def start(self, words: list[str]) -> None:
        code = f"import sys\nfrom rl_training.cli import main\nsys.exit(main({words!r}))"
        process = subprocess.Popen(
            [sys.executable, "-c", code],
            env=os.environ | {"PYTHONPATH": str(ROOT / "src")},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.running.append(process)
        assert process.stderr is not None
        assert f"127.0.0.1:{self.port}" in process.stderr.readline(), words

    def end(self) -> None:
        for process in self.running:
            process.terminate()
            process.communicate(timeout=30)


@contextmanager
def shell(page: Path, database: str) -> Iterator[Shell]:
    opened = Shell(page, database)
    try:
        yield opened
    finally:
        opened.end()


@pytest.fixture
def database(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a server, where the page is about one."""
    if DATABASE not in request.getfixturevalue("page").read_text(encoding="utf-8"):
        yield ""
        return
    if (binaries := find_binaries()) is None:
        pytest.skip("PostgreSQL's programs are not on this machine (Debian: apt-get install postgresql)")
    pytest.importorskip("adbc_driver_postgresql")
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    with PostgresServer(binaries) as server:
        yield server.address


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_runs_from_top_to_bottom(
    page: Path, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with shell(page, database) as opened:
        for language, block in all_blocks(page):
            if language == "python":
                opened.program(block)
            for line in commands(block) if language == "bash" else ():
                opened.command(line)
