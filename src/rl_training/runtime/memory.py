"""How the process treats freed memory while it trains."""

from __future__ import annotations

import ctypes
import os
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
KEPT_BYTES = 1 << 30
LARGEST_KEPT_BLOCK = 1 << 28


def keep_freed_memory() -> bool:
    """Let the C library reuse the memory of one update for the next one.

    glibc returns large freed blocks to the system, and every update pays for getting the same pages back:
    a quarter of a compiled CQL update, a tenth of an eager SAC update. Whoever has set one of these limits
    by its environment variable keeps the last word; elsewhere than on glibc nothing happens.
    """
    if not sys.platform.startswith("linux"):
        return False
    if {"MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES"} & os.environ.keys():
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return False
    return bool(mallopt(M_TRIM_THRESHOLD, KEPT_BYTES) and mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT_BLOCK))
