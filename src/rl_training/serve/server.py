"""Start, stop and swap: a policy file on an address, until SIGTERM or Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from starlette.applications import Starlette
from starlette.types import ASGIApp

from rl_training.core.errors import UserError, install_hint, printable
from rl_training.serve.app import Endpoints, Service
from rl_training.serve.safety import Doorkeeper
from rl_training.serve.sessions import Mode

TOKEN_VARIABLE = "RL_TRAINING_TOKEN"
LOOK_EVERY = 1.0
"""Seconds between two looks at a watched file."""


@dataclass(frozen=True)
class ServeSettings:
    """Where and how a policy is served."""

    policy: Path
    mode: Mode = "shadow"
    host: str = "127.0.0.1"
    port: int = 8000
    name: str | None = None
    decisions: str | None = None
    """a file or address; none: `decisions.db` beside the policy, an empty text: no log"""
    token_file: Path | None = None
    watch: bool = False
    dial: float | None = None
    idle: float = 3600.0

    @property
    def place(self) -> str | None:
        """Where decisions are written."""
        if self.decisions is None:
            return str(self.policy.with_name("decisions.db"))
        return self.decisions or None

    @property
    def token(self) -> str | None:
        if self.token_file is None:
            return os.environ.get(TOKEN_VARIABLE) or None
        try:
            return self.token_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as problem:
            raise UserError(f"--token-file {self.token_file} cannot be read: {problem}") from problem


def serve(settings: ServeSettings, say: Callable[[str], None]) -> None:
    """Answer until told to stop; what waits for the decision log is written before it ends."""
    doors = Doorkeeper(settings.host, settings.token)
    service = Service.of(settings.policy, settings.name, settings.mode, settings.place, settings.idle)
    if settings.dial is not None:
        service.sessions.choose({"dial": settings.dial})
    app = Starlette(routes=Endpoints(service, doors).routes(), lifespan=_lifespan(service, settings, say))

    def ready(port: int) -> None:
        say(
            f"{service.name} ({service.sessions.served.digest}) in {settings.mode} mode at "
            f"http://{settings.host}:{port}; decisions: {settings.place or 'not written'}"
        )

    try:
        listen(app, settings.host, settings.port, ready)
    finally:
        if service.decisions is not None:
            service.decisions.close()


def listen(app: ASGIApp, host: str, port: int, ready: Callable[[int], None], *, goodbye: int = 5) -> None:
    """Answer on an address until SIGTERM or Ctrl-C, then let open requests end for `goodbye` seconds.

    `ready` is told the port as soon as calls are answered, and not before.
    """
    try:
        import uvicorn
    except ImportError as problem:
        raise UserError(f"this needs Starlette and uvicorn; {install_hint('serve')}") from problem

    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=goodbye,
    )

    class Server(uvicorn.Server):
        async def startup(self, sockets: list[socket.socket] | None = None) -> None:
            await super().startup(sockets)
            for each in self.servers[:1]:
                ready(each.sockets[0].getsockname()[1])

        @contextlib.contextmanager
        def capture_signals(self) -> Iterator[None]:
            """Ctrl-C and SIGTERM end it in order; uvicorn would end the process before rows are written."""
            wanted = (signal.SIGINT, signal.SIGTERM)
            before = {each: signal.signal(each, self.handle_exit) for each in wanted}
            try:
                yield
            finally:
                for each, handler in before.items():
                    signal.signal(each, handler)

    try:
        Server(config).run()
    except SystemExit:  # uvicorn has said why, for example an address in use
        raise UserError(f"cannot listen on {host} port {port}: is it in use? choose another --port") from None


def _lifespan(
    service: Service, settings: ServeSettings, say: Callable[[str], None]
) -> Callable[[Starlette], contextlib.AbstractAsyncContextManager[None]]:
    @contextlib.asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        looking = asyncio.create_task(_look(service, settings.policy, say)) if settings.watch else None
        yield
        if looking is not None:
            looking.cancel()

    return lifespan


async def _look(service: Service, path: Path, say: Callable[[str], None]) -> None:
    """Take over the file whenever it changes; loaded beside the one that answers, then swapped whole."""
    known = _stamp(path)
    while True:
        await asyncio.sleep(LOOK_EVERY)
        stamp = _stamp(path)
        if stamp is None or stamp == known:
            continue
        known = stamp
        try:
            service.swap(path)
            say(f"swapped: {service.name} is {service.sessions.served.digest} now")
        except UserError as problem:
            say(f"not swapped, the policy before goes on: {printable(str(problem))}")


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
