"""Worker processes on this machine: one per task, so that a crash takes nothing else with it."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path

from rl_training.core.errors import UserError
from rl_training.runtime.signals import orderly_stop
from rl_training.sweeps.plan import Task
from rl_training.sweeps.status import run_status

POLL_SECONDS = 0.5
Target = Callable[[str, str], None]


def run_local(
    tasks: Iterable[Task],
    *,
    workers: int,
    retries: int,
    log_dir: Path,
    watch: Callable[[set[str]], None] = lambda running: None,
    target: Target | None = None,
    ended: Callable[[Task], None] = lambda task: None,
) -> int | None:
    """Work through the tasks; a task that does not end well is tried again `retries` times.

    A task is taken from `tasks` only when a worker is free, and `ended` is called when nothing more will be
    done about it. Returns the number of the signal that stopped the work, if one did; the runs are saved.
    """
    source = ((task, 0) for task in tasks)
    again: deque[tuple[Task, int]] = deque()
    running: dict[BaseProcess, tuple[Task, int]] = {}
    stopped: list[int] = []
    log_dir.mkdir(parents=True, exist_ok=True)
    with orderly_stop(stopped.append):
        while True:
            while len(running) < workers and not stopped:
                task, attempt = again.popleft() if again else next(source, (None, 0))
                if task is None:
                    break
                process = start_worker(target or work, task.to_json(), log_dir / f"{task.name}.log")
                running[process] = (task, attempt)
            if not running:
                break
            if stopped:
                _ask_to_stop(running, stopped)
            watch({run.name for task, _ in running.values() for run in task.runs})
            wait([process.sentinel for process in running], timeout=POLL_SECONDS)
            for process in [each for each in running if each.exitcode is not None]:
                task, attempt = running.pop(process)
                process.join()
                process.close()
                if finished(task) or (attempt >= retries and not stopped):
                    ended(task)
                elif not stopped:
                    again.append((task, attempt + 1))
    watch(set())
    return stopped[0] if stopped else None


def finished(task: Task) -> bool:
    return all(run_status(run.run_dir).state == "done" for run in task.runs)


def start_worker(target: Target, argument: str, log_file: Path) -> BaseProcess:
    """A fresh interpreter: nothing of this process, threads included, leaks into the run."""
    process = multiprocessing.get_context("spawn").Process(target=target, args=(argument, str(log_file)))
    process.start()
    return process


def work(task: str, log_file: str) -> None:
    """Body of a worker process."""
    become_worker(log_file)
    from rl_training.sweeps.worker import perform

    try:
        perform(Task.from_json(task))
    except UserError as problem:  # expected, and noted in the run directory: no traceback
        sys.exit(f"error: {problem}")


def become_worker(log_file: str) -> None:
    """Ctrl-C reaches only the sweep, which then asks its workers once; a worker outlives no sweep."""
    os.setsid()
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    threading.Thread(target=_stop_with_parent, daemon=True).start()


def _stop_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os.kill(os.getpid(), signal.SIGTERM)


def _ask_to_stop(running: dict[BaseProcess, tuple[Task, int]], stopped: list[int]) -> None:
    """Once: a second signal would end a worker before it has saved."""
    if len(stopped) == 1:
        stopped.append(stopped[0])
        for process in running:
            process.terminate()
