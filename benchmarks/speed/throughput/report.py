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
    MEASURED_TEXT,
    RUN_TEXT,
    SHORT_NOTES,
    SHORT_TEXT,
    STACK_TEXT,
    STEPS_TEXT,
)

CONDITIONS = [(hidden, threads) for threads in THREADS for hidden in HIDDEN_SIZES]
CHART = "![Speed of one update as a share of the GEMM floor, by algorithm and library](throughput.png)"
COLUMNS = ("floor", "compiled", "eager", *TORCH_PEERS, *JAX_PEERS)


def write_report(results: Results) -> str:
    """In short first; then every cell, ratios before absolute numbers. What was not measured is left out."""
    parts = ["# Throughput", INTRODUCTION, "## In short", SHORT_TEXT.format(cpu=processor(results.machine))]
    parts += [short_table(results), SHORT_NOTES, CHART, "## How it was measured", MEASURED_TEXT, CLOCKS]
    parts += ["## Updates, relative"]
    parts += [part for condition in CONDITIONS for part in ratio_section(results, *condition)]
    parts += section("Environment steps of SAC, relative", STEPS_TEXT, steps_rows(results, relative=True))
    parts += section("Eight stacked seeds", STACK_TEXT, stack_rows(results))
    parts += section("Whole runs", RUN_TEXT, run_rows(results))
    parts += ["## Updates per second", ABSOLUTE_TEXT]
    parts += [part for condition in CONDITIONS for part in absolute_section(results, *condition)]
    parts += section("Environment steps per second", "", steps_rows(results, relative=False))
    parts += ["## What was compared", comparison_table(results), CHECKOUT_TEXT]
    parts += ["## Machine", machine_text(results.machine)]
    return "\n\n".join(parts) + "\n"


def section(heading: str, text: str, rows: list[list[str]]) -> list[str]:
    """The first row is the header; a section without another one is left out."""
    header, *body = rows
    return [f"## {heading}", *filter(None, [text]), table(header, body)] if body else []


def processor(machine: dict[str, Any]) -> str:
    return str(machine.get("cpu", "an unrecorded processor"))


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def number(value: float | None, pattern: str = "{:.2f}") -> str:
    return "–" if value is None else pattern.format(value)


def short_table(results: Results) -> str:
    """Compiled updates against the fastest of each kind of peer, under the first condition."""
    header = ["algorithm", "fastest PyTorch peer", "×", "fastest rounds ×"]
    header += ["fastest JAX peer", "×", "fastest rounds ×", "share of the floor"]
    rows = []
    for cell in cells_of(results, *CONDITIONS[0]):
        row = [cell.algo]
        for peer in (results.fastest_torch_peer(cell), results.fastest_jax_peer(cell)):
            row += [
                name_of(peer),
                *(number(against(results, cell, peer, each)) for each in ("median", "min")),
            ]
        rows.append([*row, number(results.ratio(cell, "compiled", "floor"))])
    return table(header, rows)


def against(results: Results, cell: Cell, peer: Speed | None, round_: str) -> float | None:
    """Our compiled update's speed by that of a peer."""
    if peer is None:
        return None
    return quotient(results.speed(cell, "compiled", round_), results.speed(cell, peer.name, round_))


def cells_of(results: Results, hidden: int, threads: int) -> list[Cell]:
    """The measured ones of a condition."""
    cells = (Cell("update", algo, hidden, threads) for algo in ALGORITHMS)
    return [cell for cell in cells if results.candidates(cell)]


def ratio_section(results: Results, hidden: int, threads: int) -> list[str]:
    cells = cells_of(results, hidden, threads)
    if not cells:
        return []
    header = ["algorithm", "fastest PyTorch peer", "compiled ×", "eager ×", "fastest JAX peer", "compiled ×"]
    header += ["compiled, share of floor", "eager, share of floor"]
    return [f"### {title(hidden, threads)}", table(header, [ratio_row(results, cell) for cell in cells])]


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
    cells = cells_of(results, hidden, threads)
    if not cells:
        return []
    columns = [name for name in COLUMNS if any(name in results.candidates(cell) for cell in cells)]
    rows = [[cell.algo, *(shown(results, cell, name) for name in columns)] for cell in cells]
    return [f"### {title(hidden, threads)}", table(["algorithm", *columns], rows)]


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


def steps_rows(results: Results, *, relative: bool) -> list[list[str]]:
    names = ("compiled", "eager", *STEP_PEERS)
    rows = [["environment", *names]]
    for env_id in ENVIRONMENTS:
        cell = Cell("steps", "sac", 256, 1, env_id)
        if results.candidates(cell):
            ratios = [number(results.ratio(cell, name, "compiled")) for name in names]
            rows.append([env_id, *(ratios if relative else [shown(results, cell, name) for name in names])])
    return rows


def stack_rows(results: Results) -> list[list[str]]:
    rows = [["algorithm", "compiled ×", "eager ×"]]
    for cell in (Cell("stack", algo, STACK_HIDDEN, 1) for algo in ALGORITHMS):
        if results.candidates(cell):
            gains = [results.stack_gain(cell, mode) for mode in ("compiled", "eager")]
            rows.append([cell.algo, *map(number, gains)])
    return rows


def run_rows(results: Results) -> list[list[str]]:
    rows = [["algorithm", "overhead"]]
    for cell in (Cell("run", algo, 256, 1) for algo in WHOLE_RUNS):
        if results.candidates(cell):
            rows.append([cell.algo, number(results.run_overhead(cell), "{:.1%}")])
    return rows


def comparison_table(results: Results) -> str:
    measured = {cell["cell"]["algo"] for cell in results.cells.values()}
    rows = [
        [algo, name, "yes" if entry.counted else "no", entry.note or "–"]
        for algo, entries in COMPARISONS.items()
        if algo in measured
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
