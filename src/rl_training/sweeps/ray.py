"""The same tasks on Ray, which places and retries them; all machines need the same output directory."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from types import ModuleType

from rl_training.core.errors import ConfigError, UserError, install_hint
from rl_training.core.types import State
from rl_training.runtime.loop import orderly_stop
from rl_training.sweeps.plan import Task

POLL_SECONDS = 0.5
KNOCK_SECONDS = 5.0
QUIET: State = {"log_to_driver": False, "logging_level": logging.ERROR}


def run_on_ray(
    tasks: Sequence[Task],
    *,
    address: str | None,
    retries: int,
    watch: Callable[[set[str]], None] = lambda running: None,
) -> int | None:
    """Work through the tasks on the cluster at `address`, or on a Ray that is started and ended here.

    Returns the number of the signal that stopped the sweep, if one did.
    """
    ray = _connected_ray(address)
    stopped: list[int] = []
    try:
        remote = ray.remote(num_cpus=1, max_retries=retries, retry_exceptions=True)(perform_text)
        going = {remote.remote(task.to_json()): task for task in tasks}
        with orderly_stop(stopped.append):
            while going and not stopped:
                watch({run.name for task in going.values() for run in task.runs})
                ended, _ = ray.wait(list(going), num_returns=len(going), timeout=POLL_SECONDS)
                for reference in ended:
                    del going[reference]
        for reference in going:
            ray.cancel(reference, force=True)
    finally:
        ray.shutdown()
    watch(set())
    return stopped[0] if stopped else None


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
