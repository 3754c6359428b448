"""Do tests notice when the runtime or the judge is wrong? Plants faults, one at a time, and runs the tests.

    python benchmarks/faults/mutants.py            all faults
    python benchmarks/faults/mutants.py patience   those whose description or file holds a word
    python benchmarks/faults/mutants.py judging/   those of the judge

Every fault is applied to a copy of `src`; the tests of its part run against the copy. A fault that they
do not notice survives, and makes the exit code 1.
"""

from __future__ import annotations

import multiprocessing
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from multiprocessing.connection import Connection
from pathlib import Path

import gymnasium  # noqa: F401  (imported once, for all runs of the tests)
import judging_faults
import pytest
import runtime_faults
import torch  # noqa: F401  (the same)
from planting import Fault

ROOT = Path(__file__).parents[2]
SUITES = {"runtime": runtime_faults, "judge": judging_faults}
"""Each with its `FAULTS` and the `TESTS`, by short names, that have to notice them."""


def main(words: list[str]) -> int:
    chosen = [
        (suite.TESTS, fault)
        for suite in SUITES.values()
        for fault in suite.FAULTS
        if all(word in f"{fault.breaks} {fault.file}" for word in words)
    ]
    survived = 0
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        for _, fault in chosen:
            with planted(fault, source):
                pass  # so that a text which is not there is found now and not after an hour
        for suite in () if words else SUITES.values():
            if failed := failing_test(source, list(suite.TESTS.values())):
                sys.exit(f"{failed} fails without any fault: mend that first")
        for tests, fault in chosen:
            started = time.perf_counter()
            with planted(fault, source):
                others = [file for name, file in tests.items() if name != fault.first]
                failed = failing_test(source, [tests[fault.first]]) or failing_test(source, others)
            survived += failed is None
            verdict = f"killed by {failed}" if failed else "SURVIVED"
            print(
                f"{time.perf_counter() - started:4.0f} s  {fault.breaks} ({fault.file}): {verdict}",
                flush=True,
            )
    print(f"{len(chosen) - survived} of {len(chosen)} faults killed")
    return 1 if survived else 0


@contextmanager
def planted(fault: Fault, source: Path) -> Iterator[None]:
    """The sources with this fault in them."""
    path = source / "rl_training" / fault.file
    text = path.read_text(encoding="utf-8")
    if text.count(fault.old) != 1:
        sys.exit(f"{fault.file}: expected once, found {text.count(fault.old)} times: {fault.old!r}")
    path.write_text(text.replace(fault.old, fault.new), encoding="utf-8")
    try:
        yield
    finally:
        path.write_text(text, encoding="utf-8")


def failing_test(source: Path, files: Sequence[str]) -> str | None:
    """The first test that fails on these sources, in a process of its own that has torch already."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=run_tests, args=(source, files, sender))
    process.start()
    sender.close()
    try:
        finished, failed = receiver.recv()
    except EOFError:
        finished, failed = False, None
    process.join()
    if not finished:
        sys.exit(f"the tests could not run: {', '.join(files)}")
    return failed


class FirstFailure:
    """A plugin of pytest."""

    name: str | None = None

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and self.name is None:
            self.name = report.nodeid.partition("::")[2]


def run_tests(source: Path, files: Sequence[str], sender: Connection) -> None:
    """In the process of the tests: nothing is shown, the first failure is sent."""
    os.chdir(ROOT)
    first = FirstFailure()
    # The project's own `pythonpath` would put the sound sources first.
    options = [
        "-x",
        "-q",
        "--tb=no",
        "-p",
        "no:cacheprovider",
        "-o",
        f"pythonpath={source} {ROOT}/tests/support",
        # This process is a fork of one that has imported plugins of pytest already; with warnings as errors
        # that would end it before the first test.
        "-W",
        "ignore::pytest.PytestAssertRewriteWarning",
    ]
    with open(os.devnull, "w", encoding="utf-8") as nowhere, redirect_stdout(nowhere):
        code = pytest.main([*options, *files], plugins=[first])
    sender.send((code in (0, 1), first.name))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
