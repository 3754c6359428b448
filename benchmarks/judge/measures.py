"""Measures of the judge's benchmarks, and tables of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.stats import spearmanr

Float64Array = npt.NDArray[np.float64]


def measures(values: Float64Array, truth: Float64Array) -> dict[str, float]:
    """How well estimated values order policies and how far they are off, as shares of best minus worst."""
    scale = truth.max() - truth.min()
    order = np.argsort(-values, kind="stable")
    return {
        "spearman": float(spearmanr(values, truth).statistic),
        "regret@1": float((truth.max() - truth[order[0]]) / scale),
        "regret@3": float((truth.max() - truth[order[:3]].max()) / scale),
        "error": float(np.abs(values - truth).mean() / scale),
    }


def print_rows(rows: Sequence[dict[str, Any]]) -> None:
    """A Markdown table; columns that a row lacks stay empty."""
    names = list(dict.fromkeys(name for each in rows for name in each))
    print("| " + " | ".join(names) + " |\n|" + "---|" * len(names))
    for each in rows:
        cells = (each.get(name, "–") for name in names)
        print("| " + " | ".join(f"{c:.3f}" if isinstance(c, float) else str(c) for c in cells) + " |")
    print()
