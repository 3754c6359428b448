"""The cells of the benchmark: what is compared with what, in which order."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from peers import ALGORITHMS, COMPARISONS, MODULES, STEP_PEERS
from protocol import Spec

HIDDEN_SIZES, THREADS = (256, 64), (1, 2)
ENVIRONMENTS = ("Pendulum-v1", "HalfCheetah-v5")
WHOLE_RUNS = ("iql", "td3_bc")
STACK_HIDDEN, STACK_BATCH, BATCH = 64, 64, 256


@dataclass(frozen=True)
class Cell:
    """One table cell: candidates that are measured in turn under the same conditions.

    Kinds: `update` (bare updates), `stack` (eight seeds at once), `run` (a whole run against bare updates)
    and `steps` (environment steps of SAC).
    """

    kind: str
    algo: str
    hidden: int
    threads: int
    env_id: str = ""

    @property
    def name(self) -> str:
        parts = [self.kind, self.algo, str(self.hidden), f"t{self.threads}", self.env_id]
        return "_".join(part for part in parts if part)

    @property
    def batch(self) -> int:
        return STACK_BATCH if self.kind == "stack" else BATCH

    @property
    def candidates(self) -> list[str]:
        return {
            "update": ["floor", "compiled", "eager", *COMPARISONS[self.algo]],
            "stack": ["compiled", "compiled-stack", "eager", "eager-stack"],
            "run": ["compiled", "compiled-run"],
            "steps": ["compiled", "eager", *STEP_PEERS],
        }[self.kind]

    def spec(self, candidate: str, cores: tuple[int, ...], checkout: str) -> Spec:
        return Spec(
            candidate=candidate,
            module=MODULES[base_name(candidate)],
            kind=self.kind,
            algo=self.algo,
            hidden=self.hidden,
            batch=self.batch,
            threads=self.threads,
            env_id=self.env_id,
            cores=cores,
            checkout=checkout,
        )


def base_name(candidate: str) -> str:
    """`compiled-stack` is a way of running `compiled`."""
    return candidate if candidate in MODULES else candidate.partition("-")[0]


def all_cells() -> Iterator[Cell]:
    """Those that say most come first."""
    first, *others = [(hidden, threads) for threads in THREADS for hidden in HIDDEN_SIZES]
    yield from (Cell("update", algo, *first) for algo in ALGORITHMS)
    yield from (Cell("stack", algo, STACK_HIDDEN, 1) for algo in ALGORITHMS)
    yield from (Cell("run", algo, 256, 1) for algo in WHOLE_RUNS)
    yield from (Cell("steps", "sac", 256, 1, env_id) for env_id in ENVIRONMENTS)
    yield from (Cell("update", algo, *condition) for condition in others for algo in ALGORITHMS)


def chosen_cells(
    kinds: Collection[str], algos: Collection[str], hidden: Collection[int], threads: Collection[int]
) -> list[Cell]:
    return [
        cell
        for cell in all_cells()
        if cell.kind in kinds and cell.algo in algos and cell.hidden in hidden and cell.threads in threads
    ]
