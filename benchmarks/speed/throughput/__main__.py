"""How fast updates are, ours against those of the peers and against the matrix products alone.

    python benchmarks/speed/throughput

makes an environment with the peers (d3rlpy, Stable-Baselines3, sb3-contrib, sbx, axiomrl), measures every
cell and writes `report.md`, `results.json` and `throughput.png` into the output directory. CORL, JAX-CORL
and FQL take part where a checkout is named (--corl, --jax-corl, --fql). Cells that were measured before are
read from there: an interrupted benchmark goes on where it was, and a deleted cell is measured anew. Nothing
else should run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import machine
from cells import HIDDEN_SIZES, THREADS, Cell, chosen_cells
from chart import draw
from checkouts import CHECKOUTS
from measuring import Effort, measure
from peers import ALGORITHMS, MODULES
from peers_env import install, interpreters
from report import write_report
from results import Results

HERE = Path(__file__).resolve().parent
KINDS = ("update", "stack", "run", "steps")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python benchmarks/speed/throughput",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--algo", nargs="+", choices=ALGORITHMS, default=ALGORITHMS)
    add("--hidden", nargs="+", type=int, choices=HIDDEN_SIZES, default=HIDDEN_SIZES)
    add("--threads", nargs="+", type=int, choices=THREADS, default=THREADS)
    add(
        "--kind",
        nargs="+",
        choices=KINDS,
        default=KINDS,
        help="updates, stacked seeds, whole runs, env steps",
    )
    add("--only", nargs="+", choices=sorted(MODULES), help="candidates that take part; default: all")
    add("--rounds", type=int, default=5, help="times that every candidate of a cell is asked")
    add("--starts", type=int, default=1, help="processes of every candidate, one after another")
    add("--seconds", type=float, default=0.7, help="length of one answer")
    add("--peers-env", type=Path, default=HERE / ".peers", help="virtual environment of the peers")
    add("--corl", type=Path, metavar="PATH", help="checkout of tinkoff-ai/CORL, measured too where given")
    add("--jax-corl", type=Path, metavar="PATH", help="checkout of nissymori/JAX-CORL, likewise")
    add("--fql", type=Path, metavar="PATH", help="checkout of seohongpark/fql, likewise")
    add("--skip-install", action="store_true", help="take the environment of the peers as it is")
    add("--report-only", action="store_true", help="measure nothing, write the report of what there is")
    add("--output-dir", type=Path, default=HERE.parent / "results" / "throughput")
    add(
        "--with",
        type=Path,
        nargs="+",
        default=[],
        dest="others",
        metavar="DIR",
        help="output directories of the same machine whose cells go into the report too",
    )
    return parser.parse_args()


def measure_all(options: argparse.Namespace, folder: Path) -> None:
    peers_env = options.peers_env.absolute()
    if not options.skip_install:
        install(peers_env)
    given = {"--corl": options.corl, "--jax-corl": options.jax_corl, "--fql": options.fql}
    checkouts = {
        name: str(path.absolute())
        for name, option in CHECKOUTS.items()
        if (path := given[option]) is not None
    }
    pythons, missing = interpreters(peers_env, checkouts)
    for name, reason in missing.items():
        print(f"{name}: {reason}", flush=True)
    write_json(folder.parent / "machine.json", machine.describe(peers_env / "bin" / "python"))
    cells = chosen_cells(options.kind, options.algo, options.hidden, options.threads)
    effort = Effort(options.rounds, options.seconds, options.starts)
    for number, cell in enumerate(cells, 1):
        file = folder / f"{cell.name}.json"
        if file.exists():
            continue
        start = time.monotonic()
        result = measure(cell, pythons, missing, checkouts, effort, options.only)
        write_json(file, result)
        seconds = time.monotonic() - start
        print(f"[{number}/{len(cells)}] {cell.name} ({seconds:.0f} s): {one_line(cell, result)}", flush=True)


def one_line(cell: Cell, result: dict[str, Any]) -> str:
    """Updates (or environment steps) per second of every candidate."""
    clock = "cpu" if cell.threads == 1 else "wall"
    return ", ".join(
        f"{name} {1 / values[clock]['median']:.1f}" if clock in values else f"{name} {values['error']}"
        for name, values in result["candidates"].items()
    )


def write_json(file: Path, values: Any) -> None:
    """Under its final name only when complete: a cell that exists is never measured again."""
    temporary = file.with_suffix(".tmp")
    temporary.write_text(json.dumps(values, indent=1))
    os.replace(temporary, file)


def stop(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def main() -> int:
    options = arguments()
    signal.signal(signal.SIGTERM, stop)
    folder: Path = options.output_dir / "cells"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        if not options.report_only:
            measure_all(options, folder)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here")
        return 130
    results = Results.load(options.output_dir, *options.others)
    write_json(options.output_dir / "results.json", results.to_dict())
    (options.output_dir / "report.md").write_text(write_report(results))
    draw(results, options.output_dir / "throughput.png")
    print(f"written: {options.output_dir / 'report.md'}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
