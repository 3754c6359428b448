"""Ctrl-C and SIGTERM end a run in order: the step is finished and saved."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def orderly_stop(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop(signal number)` on the first signal; a second one acts as it would without us."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        for each, handler in previous.items():
            signal.signal(each, handler)
        stop(number)

    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
