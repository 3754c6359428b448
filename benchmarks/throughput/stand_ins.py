"""CORL and JAX-CORL are no packages that can be installed: their speed relative to d3rlpy stands in for them.

Measured with d3rlpy 2.8.1 on one core: 256 x 256, batch 256, observation 17, action 6, one thread. They are
multiplied with the speed that d3rlpy shows in this run, and are labelled wherever they appear.
"""

from __future__ import annotations

JAX_CORL = {"iql": 2.24, "td3_bc": 2.33, "awac": 1.90}
CORL = {"iql": 1.37, "td3_bc": 1.58, "awac": 0.97, "cql": 0.90, "cal_ql": 0.94}
CORL_COUNTS = ("iql", "td3_bc", "awac", "cql")
"""Algorithms in which CORL takes part in "the fastest PyTorch peer"."""

HIDDEN, THREADS = 256, 1


def stand_ins(algo: str, hidden: int, threads: int) -> dict[str, float]:
    """Name -> speed relative to d3rlpy, where the conditions are those it was measured in."""
    if (hidden, threads) != (HIDDEN, THREADS):
        return {}
    found = {"CORL": CORL.get(algo), "JAX-CORL": JAX_CORL.get(algo)}
    return {name: ratio for name, ratio in found.items() if ratio is not None}
