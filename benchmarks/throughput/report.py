"""The report in Markdown: ratios first, absolute numbers last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from cells import ENVIRONMENTS, HIDDEN_SIZES, STACK_HIDDEN, THREADS, WHOLE_RUNS, Cell
from peers import ALGORITHMS, COMPARISONS, JAX_PEERS, STEP_PEERS, TORCH_PEERS
from results import Results, Speed, quotient
from wording import (
    ABSOLUTE_TEXT,
    CHECKOUT_TEXT,
    CLOCKS,
    INTRODUCTION,
    RUN_TEXT,
    SHORT_TEXT,
    STACK_TEXT,
    STEPS_TEXT,
)

CONDITIONS = [(hidden, threads) for threads in THREADS for hidden in HIDDEN_SIZES]
CHART = "![Speed of one update as a share of the GEMM floor, by algorithm and library](throughput.png)"
COLUMNS = ("floor", "compiled", "eager", *TORCH_PEERS, *JAX_PEERS)


def write_report(results: Results) -> str:
    """In short first; then every cell, ratios before absolute numbers."""
    parts = ["# Throughput", INTRODUCTION, CHART, "## In short", SHORT_TEXT, short_table(results)]
    parts += ["## How it was measured", CLOCKS, "## Updates, relative"]
    parts += [part for condition in CONDITIONS for part in ratio_section(results, *condition)]
    parts += ["## Environment steps of SAC, relative", STEPS_TEXT, steps_table(results, relative=True)]
    parts += ["## Eight stacked seeds", STACK_TEXT, stack_table(results)]
    parts += ["## Whole runs", RUN_TEXT, run_table(results)]
    parts += ["## Updates per second", ABSOLUTE_TEXT]
    parts += [part for condition in CONDITIONS for part in absolute_section(results, *condition)]
    parts += ["## Environment steps per second", steps_table(results, relative=False)]
    parts += ["## What was compared", comparison_table(), CHECKOUT_TEXT]
    parts += ["## Machine", machine_text(results.machine)]
    return "\n\n".join(parts) + "\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, pattern: str = "{:.2f}") -> str:
    return "–" if value is None else pattern.format(value)


def short_table(results: Results) -> str:
    """Compiled updates against the fastest of each kind of peer, under the first condition."""
    header = ["algorithm", "fastest PyTorch peer", "×", "fastest JAX peer", "×", "share of the floor"]
    rows = []
    for algo in ALGORITHMS:
        cell = Cell("update", algo, *CONDITIONS[0])
        compiled = results.speed(cell, "compiled")
        row = [algo]
        for peer in (results.fastest_torch_peer(cell), results.fastest_jax_peer(cell)):
            row += [name_of(peer), number(quotient(compiled, value_of(peer)))]
        rows.append([*row, number(quotient(compiled, results.speed(cell, "floor")))])
    return table(header, rows)


def ratio_section(results: Results, hidden: int, threads: int) -> list[str]:
    if not measured(results, hidden, threads):
        return []
    header = ["algorithm", "fastest PyTorch peer", "compiled ×", "eager ×", "fastest JAX peer", "compiled ×"]
    header += ["compiled, share of floor", "eager, share of floor"]
    rows = [ratio_row(results, Cell("update", algo, hidden, threads)) for algo in ALGORITHMS]
    return [f"### {title(hidden, threads)}", table(header, rows)]


def measured(results: Results, hidden: int, threads: int) -> bool:
    return any(results.candidates(Cell("update", algo, hidden, threads)) for algo in ALGORITHMS)


def ratio_row(results: Results, cell: Cell) -> list[str]:
    compiled, eager = results.speed(cell, "compiled"), results.speed(cell, "eager")
    floor = results.speed(cell, "floor")
    torch_peer, jax_peer = results.fastest_torch_peer(cell), results.fastest_jax_peer(cell)
    return [
        cell.algo,
        name_of(torch_peer),
        number(quotient(compiled, value_of(torch_peer))),
        number(quotient(eager, value_of(torch_peer))),
        name_of(jax_peer),
        number(quotient(compiled, value_of(jax_peer))),
        number(quotient(compiled, floor)),
        number(quotient(eager, floor)),
    ]


def title(hidden: int, threads: int) -> str:
    return f"{hidden} × {hidden}, {threads} thread{'s by wall time' if threads > 1 else ''}"


def name_of(speed: Speed | None) -> str:
    return "–" if speed is None else speed.name


def value_of(speed: Speed | None) -> float | None:
    return None if speed is None else speed.value


def absolute_section(results: Results, hidden: int, threads: int) -> list[str]:
    if not measured(results, hidden, threads):
        return []
    rows = []
    for algo in ALGORITHMS:
        cell = Cell("update", algo, hidden, threads)
        rows.append([algo, *(shown(results, cell, name) for name in COLUMNS)])
    return [f"### {title(hidden, threads)}", table(["algorithm", *COLUMNS], rows)]


def shown(results: Results, cell: Cell, candidate: str) -> str:
    """A speed, in brackets where the peer's loss is another one."""
    entry = results.candidates(cell).get(candidate)
    if entry is None:
        return "–"
    speed = results.speed(cell, candidate)
    if speed is None:
        return str(entry["error"]).split(":")[0]
    comparison = COMPARISONS[cell.algo].get(candidate)
    text = f"{speed:.1f}"
    return f"({text})" if comparison is not None and not comparison.counted else text


def steps_table(results: Results, *, relative: bool) -> str:
    names = ("compiled", "eager", *STEP_PEERS)
    rows = []
    for env_id in ENVIRONMENTS:
        cell = Cell("steps", "sac", 256, 1, env_id)
        if relative:
            rows.append([env_id, *(number(results.ratio(cell, name, "compiled")) for name in names)])
        else:
            rows.append([env_id, *(shown(results, cell, name) for name in names)])
    return table(["environment", *names], rows)


def stack_table(results: Results) -> str:
    def row(algo: str) -> list[str]:
        cell = Cell("stack", algo, STACK_HIDDEN, 1)
        return [algo, *(number(results.stack_gain(cell, mode)) for mode in ("compiled", "eager"))]

    return table(["algorithm", "compiled ×", "eager ×"], map(row, ALGORITHMS))


def run_table(results: Results) -> str:
    rows = [[algo, number(results.run_overhead(Cell("run", algo, 256, 1)), "{:.1%}")] for algo in WHOLE_RUNS]
    return table(["algorithm", "overhead"], rows)


def comparison_table() -> str:
    rows = [
        [algo, name, "yes" if entry.counted else "no", entry.note or "–"]
        for algo, entries in COMPARISONS.items()
        for name, entry in entries.items()
    ]
    return table(["algorithm", "peer", "counted", "remarks"], rows)


def machine_text(machine: dict[str, Any]) -> str:
    if not machine:
        return "Not recorded."
    lines = [
        f"- {machine['cpu']}, {machine['cores']} cores ({machine['usable_cores']} usable), cache "
        f"{machine['cache']}, {', '.join(machine['vector_extensions'])}, {machine['memory_gb']} GB",
        f"- {machine['system']}, Python {machine['python']}",
    ]
    for name in ("ours", "peers"):
        packages = ", ".join(f"{package} {version}" for package, version in machine[name].items())
        lines.append(f"- {name}: {packages}")
    return "\n".join(lines)
