"""One request to a web application, without a server."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def value(self) -> Any:
        """JSON as what it stands for, anything else as text."""
        is_json = self.headers["content-type"] == "application/json"
        return json.loads(self.content) if is_json else self.content.decode()


def request(app: Any, method: str, path: str, content: bytes = b"", **headers: str) -> Answer:
    """Send it and return the answer; in a header's name `_` stands for `-`."""
    sent: list[Any] = []
    pieces = [content]

    async def receive() -> Any:
        if not pieces:
            await asyncio.Event().wait()  # who asks stays until the answer is there
        return {"type": "http.request", "body": pieces.pop(), "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    named = {"host": "127.0.0.1:8000", **{key.replace("_", "-"): value for key, value in headers.items()}}
    scope = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": unquote(path),
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(key.encode(), value.encode()) for key, value in named.items()],
    }
    asyncio.run(app(scope, receive, send))
    told = {key.decode(): value.decode() for key, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], told, b"".join(message.get("body", b"") for message in sent))
