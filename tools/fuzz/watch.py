"""Opens one input after another in a forked process and notes what became of each, and what it reached for.

A process of its own, because damaged bytes may take a library down with them, and because what it opens, runs
or imports is watched by hooks that cannot be taken out again. `outside` is watched by the kernel (inotify):
libraries in C open files without telling Python.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import resource
import select
import shutil
import signal
import sys
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

from damage import CANARY
from opening import Check

from rl_training.core.errors import UserError

HANG_SECONDS = 20
MOST_MEMORY = 1 << 20
"""kilobytes that one input may take; the largest good one takes a fiftieth of it"""
RUNS_CODE = (
    "subprocess.Popen",
    "os.system",
    "os.exec",
    "os.posix_spawn",
    "socket.connect",
    "pickle.find_class",
)
WRITES = ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.truncate", "os.symlink", "os.link")
FINE = ("accepted", "refused")


@dataclass(frozen=True)
class Case:
    """Files to put into an empty folder, and what opens them."""

    files: dict[str, bytes]
    check: Check
    must_be_refused: bool = False


class Hang(BaseException):
    """Took too long."""


def on_alarm(*_: object) -> None:
    raise Hang


class Watch:
    """What a process does beyond its own folder."""

    def __init__(self, root: Path) -> None:
        self.root, self.seen = str(root.resolve()), list[str]()
        libc = ctypes.CDLL(None, use_errno=True)
        self.kernel = libc.inotify_init1(os.O_NONBLOCK)
        everything = 0xFFF & ~0x10  # all but closing of what was open
        assert libc.inotify_add_watch(self.kernel, os.fsencode(root / "outside"), everything) >= 0
        sys.addaudithook(self.hook)

    def hook(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event in RUNS_CODE or (event == "import" and arguments[0] == CANARY):
            self.seen.append("executed")
        elif event in WRITES or (event == "open" and opens_to_write(arguments[2])):
            self.look_at(arguments[0])

    def look_at(self, path: object) -> None:
        if isinstance(path, str | bytes | os.PathLike):
            place = os.path.realpath(os.fsdecode(path))
            if not place.startswith((self.root, "/dev/", "/proc/")):
                self.seen.append("outside")

    def found(self) -> str | None:
        """The worst thing since the last question."""
        with contextlib.suppress(BlockingIOError):
            while os.read(self.kernel, 1 << 16):
                self.seen.append("outside")
        worst = min(self.seen, key=("executed", "outside").index, default=None)
        self.seen.clear()
        return worst


def opens_to_write(flags: object) -> bool:
    return isinstance(flags, int) and bool(flags & (os.O_WRONLY | os.O_RDWR))


def open_case(case: Case, place: Path, watch: Watch) -> tuple[str, str]:
    """What became of it, and the words that went with it."""
    for name, content in case.files.items():
        path = place / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    watch.found()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.alarm(HANG_SECONDS)
    result, words = "accepted", ""
    try:
        with contextlib.chdir(place), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            case.check(place)
    except UserError as problem:
        result, words = "refused", str(problem)
    except Hang:
        result = "hang"
    except MemoryError:
        result = "memory"
    except Exception as problem:
        result, words = "traceback", f"{type(problem).__name__}: {problem}"
    finally:
        signal.alarm(0)
    if result == "accepted" and case.must_be_refused:
        result = "nonsense accepted"
    if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss > before + MOST_MEMORY:
        result = "memory"
    return watch.found() or result, words


def child(make: Callable[[int], Case], numbers: range, root: Path, pipe: int) -> None:
    """Body of the forked process: a line of JSON per input."""
    signal.signal(signal.SIGALRM, on_alarm)
    resource.setrlimit(resource.RLIMIT_AS, (16 << 30, 16 << 30))
    sys.stderr = open(os.dup(2), "w")  # noqa: SIM115  # for a bug of the fuzzer itself
    nothing = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        os.dup2(nothing, stream)
    watch, place = Watch(root), root / "input"
    for number in numbers:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        case = make(number)
        result, words = open_case(case, place, watch)
        os.write(pipe, json.dumps([number, result, words[:2000]]).encode() + b"\n")


def told(lines: FileIO) -> Iterator[tuple[int, str, str]]:
    """What the forked process says, until it ends; `TimeoutError` where it stands still."""
    waiting = b""
    while True:
        if not select.select([lines], [], [], 3 * HANG_SECONDS)[0]:
            raise TimeoutError
        waiting += (piece := lines.read(1 << 16))
        if not piece:
            return
        *whole, waiting = waiting.split(b"\n")
        for line in whole:
            number, result, words = json.loads(line)
            yield number, result, words


def results(
    make: Callable[[int], Case], count: int, root: Path
) -> Generator[tuple[int, str, str], None, None]:
    """Number, outcome and words of every input; a process that dies or stands still is replaced."""
    start = 0
    while start < count:
        reading, writing = os.pipe()
        process = os.fork()
        if process == 0:
            try:
                child(make, range(start, count), root, writing)
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stderr.flush()
                os._exit(0)
        os.close(writing)
        ended = "crash"
        try:
            with open(reading, "rb", buffering=0) as lines:
                for number, result, words in told(lines):
                    start = number + 1
                    yield number, result, words
        except TimeoutError:
            ended = "hang"
        finally:  # also when this process is interrupted: what goes on would write where all is cleared away
            os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        if start < count:
            yield start, ended, ""
            start += 1


def counted(
    name: str, make: Callable[[int], Case], count: int, root: Path, keep: Path | None = None
) -> Counter[str]:
    """Outcomes of a family; inputs that ended badly are kept for a look."""
    outcomes: Counter[str] = Counter()
    with contextlib.closing(results(make, count, root)) as found:
        for number, result, words in found:
            outcomes[result] += 1
            if result not in FINE and keep is not None:
                folder = keep / f"{name.replace(' ', '-')}-{number}-{result.replace(' ', '-')}"
                for inner, content in make(number).files.items():
                    (folder / inner).parent.mkdir(parents=True, exist_ok=True)
                    (folder / inner).write_bytes(content)
                (folder / "words.txt").write_text(words)
    return outcomes
