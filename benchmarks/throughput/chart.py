"""The bar chart: every candidate's speed as a share of the GEMM floor."""

from __future__ import annotations

from pathlib import Path

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
WIDTH = 0.125


def draw(results: Results, file: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(15, 5), layout="constrained")
    named: set[str] = set()
    measured = [algo for algo in ALGORITHMS if shares_of(results, Cell("update", algo, HIDDEN, THREADS))]
    for place, algo in enumerate(measured):
        shares = shares_of(results, Cell("update", algo, HIDDEN, THREADS))
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
                label=None if label in named else label,
            )
            axes.bar_label(bars, fmt="%.2f", fontsize=6.5, padding=2)
            named.add(label)
    axes.axhline(1.0, color="black", linewidth=0.8, linestyle="--")
    axes.text(-0.55, 1.01, "matrix products alone", fontsize=8, va="bottom")
    axes.set_xticks(range(len(measured)), measured)
    axes.set_xlim(-0.6, max(len(measured), 1) - 0.4)
    axes.set(
        ylabel="speed as a share of the GEMM floor",
        title=f"Updates, {HIDDEN} × {HIDDEN}, batch 256, one thread (hatched: another loss, not counted)",
    )
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_ylim(0, 1.12)
    if named:
        axes.legend(
            frameon=False,
            ncols=(len(BARS) + 1) // 2,
            fontsize=9,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.06),
        )
    figure.savefig(file, dpi=110)
    pyplot.close(figure)


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
