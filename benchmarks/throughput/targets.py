"""The targets: 256 x 256, batch 256, one thread, unless said otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from cells import STACK_HIDDEN, WHOLE_RUNS, Cell
from peers import ALGORITHMS, JAX_PEERS, counted
from results import Results, Speed, quotient
from stand_ins import JAX_CORL

CONSERVATIVE = ("cql", "cal_ql")
"""Bound by products over many rows, where less can be gained."""


@dataclass(frozen=True)
class Row:
    """One target of one algorithm."""

    target: str
    algo: str
    against: str
    value: float | None
    bound: float
    at_most: bool = False
    limit: float | None = None
    """What the ratio would be if an update cost its matrix products alone, with this machine's torch."""

    @property
    def met(self) -> bool | None:
        """None where it was not measured."""
        if self.value is None:
            return None
        return self.value <= self.bound if self.at_most else self.value >= self.bound


def evaluate(results: Results) -> list[Row]:
    rows: list[Row] = []
    for algo in ALGORITHMS:
        rows += update_rows(results, Cell("update", algo, 256, 1))
    for mode in ("compiled", "eager"):
        for algo in ALGORITHMS:
            gain = results.stack_gain(Cell("stack", algo, STACK_HIDDEN, 1), mode)
            title = f"8 stacked seeds, {mode}, 64 × 64, batch 64"
            rows.append(Row(title, algo, "8 single runs", gain, 3.5))
    for algo in WHOLE_RUNS:
        overhead = results.run_overhead(Cell("run", algo, 256, 1))
        rows.append(Row("overhead of a whole run", algo, "bare updates", overhead, 0.10, at_most=True))
    order = list(dict.fromkeys(row.target for row in rows))
    return sorted(rows, key=lambda row: order.index(row.target))


def update_rows(results: Results, cell: Cell) -> list[Row]:
    """Everything that is asked of one algorithm's bare updates."""
    hard = cell.algo in CONSERVATIVE
    compiled, eager = results.speed(cell, "compiled"), results.speed(cell, "eager")
    floor = results.speed(cell, "floor")
    torch_peer = results.fastest_torch_peer(cell)

    def row(target: str, speed: float | None, other: Speed | None, name: str, bound: float) -> Row:
        if other is None:
            return Row(target, cell.algo, name, None, bound)
        limit = quotient(floor, other.value)
        return Row(target, cell.algo, other.name, quotient(speed, other.value), bound, limit=limit)

    rows = [
        row("compiled, fastest PyTorch peer", compiled, torch_peer, "no peer", 1.3 if hard else 1.8),
        row("eager, fastest PyTorch peer", eager, torch_peer, "no peer", 1.0 if hard else 1.2),
    ]
    share = None if floor is None else Speed("floor", floor)
    rows.append(row("compiled, share of the GEMM floor", compiled, share, "floor", 0.50 if hard else 0.55))
    if cell.algo in JAX_CORL:
        rows.append(row("compiled, JAX-CORL", compiled, results.stand_in(cell, "JAX-CORL"), "JAX-CORL", 1.10))
    for peer in counted(cell.algo, JAX_PEERS):
        speed = results.speed(cell, peer)
        rows.append(
            row("compiled, sbx (JAX)", compiled, None if speed is None else Speed(peer, speed), peer, 1.0)
        )
    return rows
