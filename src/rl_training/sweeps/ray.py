"""Tasks, and calls of any function, on Ray, which places and retries them.

All machines need the package, and for trainings the same output directory.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Generic, TypeVar

from rl_training.core.errors import ConfigError, UserError, install_hint
from rl_training.core.types import State
from rl_training.runtime.loop import orderly_stop
from rl_training.sweeps.plan import Task

POLL_SECONDS = 0.5
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
    from rl_training.sweeps.workers import perform

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
