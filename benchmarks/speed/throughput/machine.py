"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import Any

from peers import PACKAGES
from peers_env import versions

from rl_training.core.machine import active

OWN_PACKAGES = ["torch", "numpy", "gymnasium", "mujoco"]
PEER_PACKAGES = [*PACKAGES.values(), "torch", "jax", "jaxlib", "gymnasium", "mujoco"]


def describe(peers_python: Path) -> dict[str, Any]:
    info, path = cpu_info(), {"mkl_path": "amd"} if active() else {}
    return {
        "cpu": info.get("model name", platform.processor() or "unknown"),
        "cores": os.cpu_count(),
        "usable_cores": len(os.sched_getaffinity(0)),
        "cache": info.get("cache size", "unknown"),
        "vector_extensions": [
            name for name in ("avx2", "fma", "avx512f", "amx_tile") if name in info.get("flags", "").split()
        ],
        "memory_gb": round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "ours": versions(Path(sys.executable), OWN_PACKAGES) | path,
        "peers": versions(peers_python, PEER_PACKAGES) | path,
    }


def cpu_info() -> dict[str, str]:
    """The first processor of /proc/cpuinfo."""
    text = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""
    pairs = (line.split(":", 1) for line in text.partition("\n\n")[0].splitlines() if ":" in line)
    return {name.strip(): value.strip() for name, value in pairs}
