"""The sentences of the report."""

from __future__ import annotations

from stand_ins import CORL, JAX_CORL

INTRODUCTION = (
    "Time per update against other libraries and against the bare matrix products (the GEMM floor). Batch "
    "256, observation 17, action 6, two hidden layers with ReLU; every library gets batches that are already "
    "in memory in its own form. Candidates of a cell run in turn; a number is the median of the rounds (of "
    "all processes, where a cell was measured with several starts)."
)
CLOCKS = (
    "With one thread, processor time is compared and every worker is pinned to one core. With two threads, "
    "wall time is: threads that wait for work by spinning count as processor time."
)
TARGETS_TEXT = (
    "256 × 256, one thread, unless said otherwise. A stand-in is a speed relative to d3rlpy 2.8.1 that was "
    "measured before, times d3rlpy's speed here (see “What was compared”). “At the floor” is the "
    "ratio that an update would reach which costs nothing but its matrix products: a target above it is out "
    "of reach on this machine."
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
STAND_IN_TEXT = (
    "CORL and JAX-CORL are not packages; their speed relative to d3rlpy 2.8.1 stands in, 256 × 256 and one "
    f"thread. CORL: {', '.join(f'{algo} {ratio:.2f}' for algo, ratio in CORL.items())}. "
    f"JAX-CORL: {', '.join(f'{algo} {ratio:.2f}' for algo, ratio in JAX_CORL.items())}."
)
