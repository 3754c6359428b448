"""The bar chart: every candidate's speed as a share of the GEMM floor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cells import Cell
from peers import ALGORITHMS, COMPARISONS, JAX_PEERS, TORCH_PEERS
from results import Results, quotient

HIDDEN, THREADS = 256, 1
BARS = {
    "compiled": ("ours, compiled", "#1f5fa8"),
    "eager": ("ours, eager", "#8db8e0"),
    "d3rlpy": ("d3rlpy", "#d98c3f"),
    "sb3": ("Stable-Baselines3 / contrib", "#7ba05b"),
    "sbx": ("sbx (JAX)", "#b0568f"),
    "axiomrl": ("axiomrl", "#a0a0a0"),
    "corl": ("CORL", "#c9b037"),
    "jax-corl": ("JAX-CORL, equal networks", "#6b4fa0"),
    "jax-corl-shipped": ("JAX-CORL, as shipped", "#b7a4d6"),
    "corl-jax": ("CORL (JAX)", "#7d6f1f"),
    "fql-authors": ("FQL's own code (JAX)", "#3f9c9c"),
}
WIDTH = 0.13


def draw(results: Results, file: Path) -> None:
    """Two rows of algorithms: in one, the numbers on the bars would be too small to read."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = [algo for algo in ALGORITHMS if shares_of(results, Cell("update", algo, HIDDEN, THREADS))]
    half = max(1, (len(measured) + 1) // 2)
    figure, rows = pyplot.subplots(2, 1, figsize=(10, 8), layout="constrained")
    named: dict[str, Any] = {}
    for axes, algos in zip(rows, (measured[:half], measured[half:]), strict=True):
        for place, algo in enumerate(algos):
            draw_algorithm(axes, place, shares_of(results, Cell("update", algo, HIDDEN, THREADS)), named)
        axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
        axes.set_xticks(range(len(algos)), algos, fontsize=11)
        axes.set_xlim(-0.6, half - 0.4)
        axes.set_ylim(0, 1.12)
        axes.set_ylabel("share of the GEMM floor")
        axes.spines[["top", "right"]].set_visible(False)
    rows[0].text(-0.58, 1.01, "matrix products alone", fontsize=9, va="bottom")
    rows[0].set_title(
        f"Updates, {HIDDEN} × {HIDDEN}, batch 256, one thread (hatched: another loss, not counted)"
    )
    if named:
        figure.legend(
            named.values(), named.keys(), frameon=False, ncols=4, fontsize=10, loc="outside lower center"
        )
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


def draw_algorithm(
    axes: Any, place: int, shares: dict[str, tuple[float, bool]], named: dict[str, Any]
) -> None:
    """The bars of one algorithm, side by side around `place`."""
    for index, (candidate, (share, counts)) in enumerate(shares.items()):
        label, colour = BARS["sb3" if candidate == "sb3-contrib" else candidate]
        bars = axes.bar(
            place + (index - (len(shares) - 1) / 2) * WIDTH,
            share,
            WIDTH * 0.92,
            color=colour,
            hatch=None if counts else "///",
            edgecolor="white",
            linewidth=0.5,
        )
        axes.bar_label(bars, fmt="%.2f", fontsize=8.5, padding=2)
        named.setdefault(label, bars)


def shares_of(results: Results, cell: Cell) -> dict[str, tuple[float, bool]]:
    """Share of the floor and whether the candidate computes the same loss, in the order of the bars."""
    floor = results.speed(cell, "floor")
    names = ("compiled", "eager", *TORCH_PEERS, *JAX_PEERS)
    found: dict[str, tuple[float, bool]] = {}
    for name in names:
        share = quotient(results.speed(cell, name), floor)
        comparison = COMPARISONS[cell.algo].get(name)
        if share is not None:
            found[name] = (share, comparison is None or comparison.counted)
    return found
