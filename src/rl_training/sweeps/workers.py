"""Where tasks are worked through: processes on this machine, or Ray.

A task here has a process of its own, so that a crash takes nothing else with it. A run is skipped, resumed or
started by what its directory says, and a failure is written down in it.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import shutil
import signal
import socket
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from rl_training.core.errors import ConfigError, RunFailed, UserError, install_hint
from rl_training.core.files import write_json_atomic
from rl_training.core.types import State
from rl_training.runs.directory import lock_run, refuse_directory_in_use
from rl_training.runs.resume import resume_training
from rl_training.runs.train import train
from rl_training.runtime.callbacks import Callback
from rl_training.runtime.envs import load_wrappers
from rl_training.runtime.loop import orderly_stop
from rl_training.sweeps.plan import FAILURE_FILE, SweepRun, Task, refuse_foreign

POLL_SECONDS = 0.5

CallbacksOf = Callable[[Task], Sequence[Callback]]
"""What else a worker trains a task with; a module's function, which travels to another process."""


def perform(task: Task, callbacks: Sequence[Callback] = ()) -> None:
    """Bring every run of the task to its end; what is done already is left alone."""
    import torch

    torch.set_num_threads(1)  # a sum over threads rounds by their number: results must not depend on it
    with ExitStack() as claims:
        for run in task.runs:
            claims.enter_context(lock_run(run.run_dir))
        try:
            _train(task, callbacks)
        except Exception as problem:
            _note_failure(task, problem)
            raise


def _train(task: Task, callbacks: Sequence[Callback]) -> None:
    for run in task.runs:
        refuse_foreign(run.run_dir, run.config)
    left = [run for run in task.runs if not run.status.done]
    if len(left) == len(task.runs) > 1:
        _start(left, callbacks)  # a stack goes on as a stack or not at all: alone its seeds round otherwise
        return
    for run in left:
        (run.run_dir / FAILURE_FILE).unlink(missing_ok=True)
        if run.status.can_resume:
            # what a file would not be trusted with, the sweep's own config says
            resume_training(
                run.run_dir,
                env=run.config.env_id,
                wrappers=load_wrappers(run.config.wrappers),
                env_kwargs=run.config.env_kwargs,
                tracker_names=run.config.trackers,
                callbacks=list(callbacks),
                quiet=True,
            )
        else:
            _start([run], callbacks)


def _start(runs: Sequence[SweepRun], callbacks: Sequence[Callback]) -> None:
    """Train from the first step in empty directories."""
    for run in runs:
        if run.run_dir.exists():
            refuse_directory_in_use(run.run_dir)
            shutil.rmtree(run.run_dir)
    config = runs[0].config
    if len(runs) > 1:
        config = config.replace(seeds=[run.config.seed for run in runs])
    result = train(config, callbacks=callbacks, quiet=True)
    used = [member.run_dir for member in result.members or (result,)]
    if used != [run.run_dir for run in runs]:
        raise RunFailed(f"{used[0]} was used in place of {runs[0].run_dir}: something else wrote there")


def _note_failure(task: Task, problem: Exception) -> None:
    """Leave the reason in the directory, where the next attempt and the table find it."""
    expected = isinstance(problem, UserError)
    text = "; ".join(str(problem).splitlines()) if expected else f"{type(problem).__name__}: {problem}"
    details = None if expected else traceback.format_exc()
    for run in task.runs:
        try:
            refuse_foreign(run.run_dir, run.config)
        except UserError:
            continue
        if not run.status.done:
            run.run_dir.mkdir(parents=True, exist_ok=True)
            write_json_atomic(run.run_dir / FAILURE_FILE, {"error": text, "traceback": details})


def run_local(
    tasks: Iterable[Task],
    *,
    workers: int,
    retries: int,
    log_dir: Path,
    watch: Callable[[set[str]], None] = lambda running: None,
    callbacks_of: CallbacksOf | None = None,
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
                # A fresh interpreter: nothing of this process, threads included, leaks into the run.
                arguments = (task.to_json(), str(log_dir / f"{task.name}.log"), callbacks_of)
                process: BaseProcess = multiprocessing.get_context("spawn").Process(
                    target=work, args=arguments
                )
                process.start()
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
                if task.done or (attempt >= retries and not stopped):
                    ended(task)
                elif not stopped:
                    again.append((task, attempt + 1))
    watch(set())
    return stopped[0] if stopped else None


def work(text: str, log_file: str, callbacks_of: CallbacksOf | None) -> None:
    """Body of a worker process."""
    _become_worker(log_file)
    try:
        task = Task.from_json(text)
        perform(task, callbacks_of(task) if callbacks_of else ())
    except UserError as problem:  # expected, and noted in the run directory: no traceback
        sys.exit(f"error: {problem}")


def _become_worker(log_file: str) -> None:
    """Ctrl-C reaches only the sweep, which then asks its workers once; a worker outlives no sweep."""
    os.setsid()
    descriptor = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    sys.stdout.flush()
    for stream in (1, 2):
        os.dup2(descriptor, stream)
    os.close(descriptor)
    threading.Thread(target=_stop_with_parent, daemon=True).start()


def worker_count(workers: int | None) -> int:
    """As many as there are cores this process may use."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers must be >= 1, got {workers}")
    return workers or len(os.sched_getaffinity(0))


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


# ---- on Ray, which places and retries tasks and calls of any function: all machines need the package, and
# for trainings the same output directory


KNOCK_SECONDS = 5.0
Answer = TypeVar("Answer")
QUIET: State = {"log_to_driver": False, "logging_level": logging.ERROR}


def run_on_ray(
    tasks: Sequence[Task],
    *,
    address: str | None,
    retries: int,
    watch: Callable[[set[str]], None] = lambda running: None,
) -> int | None:
    """Work through the tasks on the cluster at `address`, or on a Ray that is started and ended here.

    Returns the number of the signal that stopped the sweep, if one did. What came of a task, its run
    directory tells.
    """

    def tell(left: Sequence[int]) -> None:
        watch({run.name for index in left for run in tasks[index].runs})

    calls = [(task.to_json(),) for task in tasks]
    return call_on_ray(perform_text, calls, address=address, retries=retries, watch=tell).stopped


@dataclass(frozen=True)
class RayAnswers(Generic[Answer]):
    """What the calls returned, by their place; those that failed, and the signal that stopped them all."""

    answers: Mapping[int, Answer]
    failed: Mapping[int, str]
    stopped: int | None


def call_on_ray(
    function: Callable[..., Answer],
    calls: Sequence[tuple[object, ...]],
    *,
    address: str | None,
    retries: int,
    watch: Callable[[Sequence[int]], None] = lambda left: None,
) -> RayAnswers[Answer]:
    """Call a function with each of several arguments, wherever on the cluster a processor is free."""
    ray = _connected_ray(address)
    stopped: list[int] = []
    answers: dict[int, Answer] = {}
    failed: dict[int, str] = {}
    try:
        remote = ray.remote(num_cpus=1, max_retries=retries, retry_exceptions=True)(function)
        going = {remote.remote(*arguments): index for index, arguments in enumerate(calls)}
        with orderly_stop(stopped.append):
            while going and not stopped:
                watch(sorted(going.values()))
                ended, _ = ray.wait(list(going), num_returns=len(going), timeout=POLL_SECONDS)
                for reference in ended:
                    index = going.pop(reference)
                    try:
                        answers[index] = ray.get(reference)
                    except Exception as problem:  # whatever the call, or the loss of its node, raised
                        failed[index] = (str(problem).splitlines() or [type(problem).__name__])[-1]
        for reference in going:
            ray.cancel(reference, force=True)
    finally:
        ray.shutdown()
    watch([])
    return RayAnswers(answers, failed, stopped[0] if stopped else None)


def perform_text(task: str) -> None:
    """Body of a Ray task; the run directory tells what came of it."""
    try:
        perform(Task.from_json(task))
    except UserError as problem:
        raise RuntimeError(str(problem)) from None  # plain text survives the way back to the driver


def _connected_ray(address: str | None) -> ModuleType:
    try:
        ray = import_module("ray")
    except ImportError:
        raise ConfigError(f"backend ray needs the ray package: {install_hint('sweep')}") from None
    try:
        if address is None:
            # A Ray of our own: its workers import this very package, also from a checkout.
            source = {"env_vars": {"PYTHONPATH": str(Path(__file__).parents[3])}}
            ray.init(address="local", include_dashboard=False, runtime_env=source, **QUIET)
        else:
            _knock(address)
            ray.init(address=address, **QUIET)
    except (OSError, RuntimeError, ValueError) as problem:
        line = (str(problem).splitlines() or [type(problem).__name__])[0]
        raise ConfigError(f"address must be a Ray cluster that answers, got {address!r}: {line}") from None
    return ray


def _knock(address: str) -> None:
    """Ray itself tries for minutes, and prints all the while, where nobody listens."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=KNOCK_SECONDS).close()
