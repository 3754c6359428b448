"""Starts the workers of a cell, asks them in turn, and makes sure that none is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

from protocol import Spec

HERE = Path(__file__).resolve().parent
SOURCES = HERE.parents[2] / "src"
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


class WorkerFailed(Exception):
    """A candidate that could not be built or died; the message is the last line that it wrote."""


class Worker:
    """One candidate in its own process group."""

    def __init__(self, spec: Spec, python: Path, folder: Path) -> None:
        self.log = folder / f"{spec.candidate}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [str(python), str(HERE / "worker.py"), json.dumps(asdict(spec))],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=environment(spec),
                cwd=folder,
                text=True,
                start_new_session=True,
            )

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            written = self.log.read_text(errors="replace").strip().splitlines()
            raise WorkerFailed(written[-1][:300] if written else "the worker ended without a word")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def ask(self, updates: int) -> dict[str, Any]:
        """Make so many updates and say how long they took."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(f"{updates}\n")
            self.process.stdin.flush()
        return self.read()

    def pin(self, cores: tuple[int, ...]) -> None:
        """All threads of the worker on these cores and no others."""
        for thread in os.listdir(f"/proc/{self.process.pid}/task"):
            with suppress(ProcessLookupError):
                os.sched_setaffinity(int(thread), cores)

    def close(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            with suppress(BrokenPipeError):
                if stream is not None:
                    stream.close()


def environment(spec: Spec) -> dict[str, str]:
    """As the user's, with the number of threads fixed for every library."""
    variables = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, str(spec.threads))}
    variables["PYTHONPATH"] = str(SOURCES)
    variables["JAX_PLATFORMS"] = "cpu"
    variables["TORCHINDUCTOR_COMPILE_THREADS"] = "1"  # no pool of compilers that outlives the compilation
    if spec.threads == 1:
        variables["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    return variables


@contextmanager
def workers(specs: dict[str, Spec], pythons: dict[str, Path]) -> Iterator[dict[str, Worker]]:
    """The workers of a cell while they are needed; they are gone however the block ends."""
    started: dict[str, Worker] = {}
    with tempfile.TemporaryDirectory(prefix="throughput-") as folder:
        try:
            for name, spec in specs.items():
                place = Path(folder) / name
                place.mkdir()
                started[name] = Worker(spec, pythons[name], place)
            yield started
        finally:
            for worker in started.values():
                worker.close()
