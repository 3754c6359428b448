"""Start the studio: one directory, this machine alone, an address with a new token every time."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path

from rl_training.serve.server import listen
from rl_training.studio.app import Studio
from rl_training.studio.folder import Folder


def studio(directory: Path, port: int, say: Callable[[str], None]) -> None:
    """Answer until told to stop; what was started goes on."""
    folder, token = Folder.of(directory), secrets.token_urlsafe(24)

    def ready(taken: int) -> None:
        say(f"studio of {folder.root}; open this address, and keep it to yourself:")
        say(f"http://127.0.0.1:{taken}/#token={token}")

    listen(Studio(folder, token).app(), "127.0.0.1", port, ready, goodbye=1)
