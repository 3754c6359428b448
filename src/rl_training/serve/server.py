"""A server on this machine: who may talk to it (right host, no other page, a token), and how it listens."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import signal
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp

from rl_training.core.errors import UserError, install_hint, shown
from rl_training.core.files import parse_json
from rl_training.core.types import Facts

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
SHORTEST_TOKEN = 16


class Refusal(UserError):
    """A request that cannot be answered, with its HTTP status."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def told_problem(problem: UserError) -> JSONResponse:
    """What is wrong with a request, in one line."""
    status = problem.status if isinstance(problem, Refusal) else 400
    return JSONResponse({"error": " ".join(str(problem).split())}, status)


def is_local(host: str) -> bool:
    """Whether only programs on this machine reach an address."""
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


@dataclass(frozen=True)
class Doorkeeper:
    """Answers, for one request, why it is refused, or nothing."""

    host: str
    token: str | None

    def __post_init__(self) -> None:
        if self.token is None and not is_local(self.host):
            raise UserError(
                f"--host {self.host} can be reached from other machines, so a token must be given: "
                "--token-file FILE, or RL_TRAINING_TOKEN in the environment"
            )
        if self.token is not None and len(self.token) < SHORTEST_TOKEN:
            raise UserError(
                f"the token must have at least {SHORTEST_TOKEN} characters; "
                "python -c 'import secrets; print(secrets.token_urlsafe())' makes one"
            )

    def refuses(self, headers: Mapping[str, str], *, open_to_all: bool = False) -> tuple[int, str] | None:
        """Status and reason. A page of another site can reach this machine by the user's browser: its
        `Origin` gives it away, and a name that it made point here is not one of ours.
        """
        host = headers.get("host", "")
        if is_local(self.host) and hostname(host) not in LOCAL_NAMES:
            return 421, "the Host of this request is not this machine"
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != host:
            return 403, "requests of pages from elsewhere are refused"
        if open_to_all or self.token is None or self.knows(headers):
            return None
        return 401, "a token is needed: Authorization: Bearer TOKEN"

    def knows(self, headers: Mapping[str, str]) -> bool:
        """Whether a request carries the token (compared in constant time)."""
        given = headers.get("authorization", "").removeprefix("Bearer ")
        return self.token is not None and hmac.compare_digest(given.encode(), self.token.encode())


def hostname(host: str) -> str:
    """The name in `name:port` or `[address]:port`."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


async def read_body(receive: Any, limit: int) -> bytes | None:
    """The body of a request, none when it is longer than allowed."""
    parts: list[bytes] = []
    size, more = 0, True
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            break
        part = message.get("body", b"")
        size, more = size + len(part), message.get("more_body", False)
        if size > limit:
            return None
        parts.append(part)
    return b"".join(parts)


async def json_object(request: Request, limit: int) -> Facts:
    """The body of a request as a JSON object."""
    content = await read_body(request.receive, limit)
    if content is None:
        raise Refusal(413, f"a request may have {limit} bytes at most")
    try:
        values = parse_json(content)
    except ValueError:
        raise UserError("the body must be a JSON object") from None
    if not isinstance(values, dict):
        raise UserError(f"the body must be a JSON object, got {shown(values)}")
    return values


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
