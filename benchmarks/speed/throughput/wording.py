"""The sentences of the report."""

from __future__ import annotations

INTRODUCTION = (
    "How fast one update is, next to other libraries and next to its matrix products alone: every cell. "
    "[Performance](performance.md) says it in a few lines."
)
MEASURED_TEXT = (
    "Batch 256, observation 17, action 6, two hidden layers with ReLU; every library gets batches that are "
    "already in memory in its own form. Candidates of a cell run in turn; a number is the median of the "
    "rounds (of all processes, where a cell was measured with several starts). The *GEMM floor* is the "
    "matrix products that an update needs and nothing between them, each the way round that is fastest, "
    "into memory that is there already."
)
CLOCKS = (
    "With one thread, processor time is compared and every worker is pinned to one core. With two threads, "
    "wall time is: threads that wait for work by spinning count as processor time."
)
SHORT_TEXT = (
    "Compiled updates, 256 × 256, one core of an {cpu}, against the fastest library of each kind "
    "that computes the same loss with equal networks: above 1, ours is faster. “×” compares the median "
    "rounds, “fastest rounds ×” the best round of each: where the two differ, the truth is between them. The "
    "last column is the share of an update's time that its matrix products alone would take."
)
SHORT_NOTES = (
    "Compare within a row. Cells of different hours differ more than libraries do: other programs share "
    "the processor's memory, and everything in a cell slows down together."
)
STEPS_TEXT = "One environment, one update per step, 256 × 256, one thread; ours compiled = 1."
STACK_TEXT = (
    "8 seeds as one batched update against 8 updates of single learners, 64 × 64, batch 64, one thread."
)
RUN_TEXT = (
    "Time that sampling, loop and logging (default interval, no evaluation, no checkpoint) add to bare "
    "compiled updates, 256 × 256, one thread."
)
ABSOLUTE_TEXT = (
    "In brackets: another loss, listed but not counted. Dash: the peer does not have the algorithm."
)
CHECKOUT_TEXT = (
    "CORL, JAX-CORL and FQL's code are collections of scripts and cannot be installed. They are measured "
    "where a checkout is named (`--corl PATH`, `--jax-corl PATH`, `--fql PATH`); “no checkout given” stands "
    "where none was. “corl-jax” is the part of CORL that is written in JAX. JAX-CORL's scripts "
    "for CQL, XQL and decision transformers are not measured."
)
