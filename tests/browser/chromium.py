"""A headless Chromium, spoken to over its debugging pipe: JSON messages on two file descriptors, no server.

Only the standard library is used. Debian's package is installed where no browser is found and the user may.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import select
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from debian import NotInstalled, install

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-quic"),
    "--remote-debugging-pipe",
)
TIMEOUT_SECONDS = 60.0


class NoBrowser(RuntimeError):
    """No Chromium, and no way to get one."""


def find_or_install() -> str:
    """The path of a browser; Debian's is installed if there is none."""
    if found := _find():
        return found
    try:
        install("chromium", "fonts-dejavu-core", why="Chromium is missing")
    except NotInstalled as problem:
        raise NoBrowser(str(problem)) from None
    if found := _find():
        return found
    raise NoBrowser("Chromium was installed but is not on the PATH")


def _find() -> str | None:
    return next((path for name in NAMES if (path := shutil.which(name))), None)


class Browser:
    """One browser with one page; use it as a context manager. `events` collects what the page reports."""

    def __init__(self, program: str) -> None:
        self.profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_browser, self.output = os.pipe()
        self.input, from_browser = os.pipe()
        # The browser expects descriptors 3 and 4. Numbers above 9 cannot collide with them while they move.
        ours = [fcntl.fcntl(fd, fcntl.F_DUPFD, 10) for fd in (to_browser, from_browser)]
        move = f'exec "$0" "$@" 3<&{ours[0]} 4>&{ours[1]} {ours[0]}<&- {ours[1]}>&-'
        self.process = subprocess.Popen(
            ["bash", "-c", move, program, *FLAGS, f"--user-data-dir={self.profile.name}"],
            pass_fds=ours,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        for descriptor in (to_browser, from_browser, *ours):
            os.close(descriptor)
        self.received = b""
        self.number = 0
        self.session: str | None = None
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Self:
        self.new_tab()
        return self

    def new_tab(self) -> str:
        """Another page, to which everything goes from now on; its session, to come back to it."""
        self.session = None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session: str = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        self.session = session
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        return session

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        os.close(self.output)  # the browser ends when its pipe does
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
        os.close(self.input)
        self.profile.cleanup()

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command and return its result; events that come in between are kept."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": parameters}
        if self.session is not None:
            message["sessionId"] = self.session
        os.write(self.output, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self.number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str, *, width: int, height: int, scheme: str) -> None:
        """Show a page in a window of this size and colour scheme, and wait until it is loaded."""
        self.look(width=width, height=height, scheme=scheme)
        self.events.clear()
        self.call("Page.navigate", url=url)
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._receive())

    def look(self, *, width: int, height: int, scheme: str) -> None:
        """Another size of the window, and another colour scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1}
        self.call("Emulation.setDeviceMetricsOverride", mobile=width < 600, **size)
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def screenshot(self, path: Path) -> None:
        """All of the page, also what lies below the window, as a PNG file."""
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(base64.b64decode(picture))

    def show(self, session: str | None) -> None:
        """Go back to a page that was opened before."""
        self.session = session
        self.call("Page.bringToFront")

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression in the page."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(answer["exceptionDetails"]["text"])
        return answer["result"].get("value")

    def _receive(self) -> dict[str, Any]:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while b"\0" not in self.received:
            ready, _, _ = select.select([self.input], [], [], max(0.0, deadline - time.monotonic()))
            block = os.read(self.input, 1 << 16) if ready else b""
            if not block:
                raise RuntimeError("Chromium does not answer" if not ready else "Chromium ended unexpectedly")
            self.received += block
        line, _, self.received = self.received.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message
