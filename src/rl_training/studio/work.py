"""What was started: processes that outlive the page and its server, each with a folder that says all of it.

`order.json` is what was asked for, `output.txt` what the process printed, and the process holds a lock on
`running.lock` for as long as it lives, so that nothing has to be remembered of it.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

from rl_training.core.checkpoints import newest_checkpoint
from rl_training.core.errors import UserError, plain_text, shown
from rl_training.core.files import parse_json, write_json_atomic
from rl_training.core.types import Facts, State, number
from rl_training.recommend.auto import PLAN, STOPPED
from rl_training.report.study import RunRecord, read_run
from rl_training.runs.directory import CONFIG_FILE, SUMMARY_FILE, directory_name
from rl_training.runs.tracking import METRICS_FILE
from rl_training.serve.server import Refusal
from rl_training.studio.folder import WORK, Folder
from rl_training.studio.orders import Order, Shadow, Train, command_line, read_order

ORDER_FILE, OUTPUT_FILE, LOCK_FILE = "order.json", "output.txt", "running.lock"
MOST_AT_ONCE = 8
TAIL = 6_000
"""Bytes of the output that are shown."""
POINTS = 200
"""Points of a curve that are drawn."""

children: list[subprocess.Popen[bytes]] = []
"""Children of this server, asked now and then so that none stays behind as a zombie."""


@dataclass(frozen=True)
class Work:
    """One thing that was started."""

    folder: Folder
    place: Path

    @property
    def name(self) -> str:
        return self.place.name

    @property
    def given(self) -> Facts:
        """What was asked for, as it was written down."""
        try:
            found = parse_json((self.place / ORDER_FILE).read_bytes())
        except (OSError, ValueError):
            found = None
        if not isinstance(found, dict):
            raise Refusal(404, f"{shown(self.name)} was not started by the studio")
        return found

    @property
    def order(self) -> Order:
        """The same, checked again like a request: a file is not trusted more than a page."""
        return read_order(self.given)

    @property
    def running(self) -> bool:
        descriptor = _locked(self.place)
        if descriptor is not None:
            os.close(descriptor)
        return descriptor is None

    @property
    def runs(self) -> list[Path]:
        """Run directories inside, in the order of the alphabet."""
        patterns = (f"*/{CONFIG_FILE}", f"runs/*/*/{CONFIG_FILE}", f"runs/*/{CONFIG_FILE}")
        found = {path.parent for pattern in patterns for path in self.place.glob(pattern)}
        return sorted(path for path in found if path.resolve().is_relative_to(self.folder.root))

    def planned(self) -> int:
        """How many trainings it has in all; a search writes that down before the first."""
        with suppress(OSError, ValueError, KeyError, TypeError):
            return len(parse_json((self.place / PLAN).read_bytes())["updates"])
        return len(self.runs)

    def output(self) -> str:
        """The end of what it printed."""
        try:
            with (self.place / OUTPUT_FILE).open("rb") as file:
                file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
                return plain_text(file.read().decode("utf-8", "replace")).strip()
        except OSError:
            return ""

    def state(self, order: Order, output: str) -> Literal["running", "done", "failed", "stopped"]:
        if self.running:
            return "running"
        problems = [line for line in output.splitlines() if line.startswith("error:")]
        if problems and not problems[-1].startswith(f"error: {STOPPED.partition('{')[0]}"):
            return "failed"
        if isinstance(order, Train):
            runs = [read_run(run) for run in self.runs]
            done = bool(runs) and all(run.finished for run in runs)
        elif order.result:
            done = (self.place / order.result).exists()
        else:
            done = bool(output) and not isinstance(order, Shadow)
        return "done" if done else "stopped"

    def start(self, order: Order, words: list[str]) -> None:
        """Begin, or go on after a stop; a second start while it runs is refused."""
        children[:] = [process for process in children if process.poll() is None]
        lock = _locked(self.place)
        if lock is None:
            raise Refusal(409, f"{self.name} is running already")
        try:
            with (self.place / OUTPUT_FILE).open("wb") as output:
                process = subprocess.Popen(
                    [sys.executable, "-m", "rl_training", *words],
                    cwd=self.folder.root,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                    pass_fds=(lock,),
                )
        finally:
            os.close(lock)
        children.append(process)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        settings = {"kind": order.kind, "settings": order.to_dict()}
        write_json_atomic(self.place / ORDER_FILE, {**settings, "process": process.pid, "started": started})

    def go_on(self) -> None:
        """The same command again, which goes on where it was; a single run goes on by its checkpoint."""
        order = self.order
        left = [run for run in self.runs if newest_checkpoint(run) is not None]
        words = order.words(self.folder, self.place)
        if isinstance(order, Train) and left:
            words = ["resume", f"--checkpoint={self.folder.spelled(left[0])}"]
        self.start(order, words)

    def stop(self) -> None:
        """Ask it to end; it saves what it has."""
        process = self.given.get("process")
        if not self.running or type(process) is not int or process <= 1:
            raise Refusal(409, f"{self.name} is not running")
        with suppress(ProcessLookupError, PermissionError):
            os.kill(process, signal.SIGTERM)

    def told(self) -> State:
        """All that the page shows of it."""
        given, output = self.given, self.output()
        order = self.order
        runs = [run_told(self.folder, path) for path in self.runs]
        files = sorted(path.name for path in self.place.iterdir() if path.is_file())
        return {
            "name": self.name,
            "kind": order.kind,
            "settings": order.to_dict(),
            "command": command_line(order.words(self.folder, self.place)),
            "started": str(given.get("started", "")),
            "state": self.state(order, output),
            "output": output,
            "runs": runs,
            "planned": self.planned(),
            "pages": [self.folder.name(self.place / each) for each in files if each.endswith(".html")],
            "policies": [
                self.folder.name(self.place / each)
                for each in files
                if each.endswith((".onnx", ".safetensors"))
            ],
        }


def all_work(folder: Folder) -> list[Work]:
    """Everything that was started here, the newest first."""
    place = folder.path(WORK)
    found = [] if not place.is_dir() else [each for each in place.iterdir() if (each / ORDER_FILE).is_file()]
    inside = [Work(folder, each) for each in found if each.resolve() == each]
    return sorted(inside, key=lambda work: (work.place / ORDER_FILE).stat().st_mtime, reverse=True)


def work_called(folder: Folder, name: object) -> Work:
    work = Work(folder, folder.path(f"{WORK}/{name}"))
    if work.place != folder.root / WORK / str(name) or not (work.place / ORDER_FILE).is_file():
        raise Refusal(404, f"nothing called {shown(name)} was started here")
    return work


def start_work(folder: Folder, order: Order) -> Work:
    """Begin something in a folder of its own."""
    running = sum(work.running for work in all_work(folder))
    if running >= MOST_AT_ONCE:
        raise Refusal(409, f"{running} things are running already: stop one of them, or wait")
    stem = directory_name(order.kind, order.about())[:80]
    order.words(
        folder, folder.path(f"{WORK}/{stem}")
    )  # what is wrong with it is said before a folder is made
    parent = folder.path(WORK)
    for count in range(1, 10_000):
        place = parent / (stem if count == 1 else f"{stem}-{count}")
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as problem:
            raise UserError(f"{place} cannot be made: {problem.strerror}") from problem
        work = Work(folder, place)
        work.start(order, order.words(folder, place))
        return work
    raise UserError(f"{WORK} holds too many folders called {stem}: delete some")


_known_runs: dict[Path, tuple[tuple[float, ...], RunRecord]] = {}


def run_told(folder: Folder, path: Path) -> State:
    """A run in a few numbers and curves; read again only where its files have changed."""
    stamp = tuple(_changed(path / name) for name in (CONFIG_FILE, METRICS_FILE, SUMMARY_FILE))
    known = _known_runs.get(path)
    if known is None or known[0] != stamp:
        known = _known_runs[path] = (stamp, read_run(path))
    run = known[1]
    total = number(run.config.get("total_timesteps"))
    step = max(run.last_step, int(number(run.metrics.get("global_step")) or 0))
    names = {name for row in run.rows for name in row} - {"step", "kind", "time"}
    curves = {name: _curve(run, name) for name in sorted(names)}
    return {
        "name": folder.name(path),
        "algo": run.algo,
        "step": step,
        "total": total,
        "state": run.stop_reason if run.summary is not None else "unfinished",
        "verdict": run.metrics.get("judge_verdict"),
        "value": number(run.metrics.get("judge_value")),
        "return": number(run.metrics.get("eval_return_mean")),
        "curves": {name: curve for name, curve in curves.items() if len(curve) > 1},
    }


def _curve(run: RunRecord, name: str) -> list[tuple[int, float]]:
    points = run.series(name, "train") or run.series(name)
    return points[:: max(1, len(points) // POINTS)]


def _changed(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _locked(place: Path) -> int | None:
    """The lock of a folder, taken; none while the process that was started in it lives."""
    descriptor = os.open(place / LOCK_FILE, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor
