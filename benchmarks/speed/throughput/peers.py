"""Which peers have which algorithm, and whether they compute the same loss as we do.

"Same" means: the same networks, the same terms and the same number of samples, up to constant factors. What
differences are left is said in the note. Peers that compute something else, or less, are listed, not counted.
"""

from __future__ import annotations

from dataclasses import dataclass

TORCH_PEERS = ("d3rlpy", "corl", "sb3", "sb3-contrib", "axiomrl")
JAX_PEERS = ("sbx", "jax-corl", "jax-corl-shipped", "corl-jax", "fql-authors")

PACKAGES = {
    "d3rlpy": "d3rlpy",
    "sb3": "stable-baselines3",
    "sb3-contrib": "sb3-contrib",
    "sbx": "sbx-rl",
    "axiomrl": "axiomrl",
}
MODULES = {
    "compiled": "ours",
    "eager": "ours",
    "floor": "floor",
    "d3rlpy": "with_d3rlpy",
    "sb3": "with_sb3",
    "sb3-contrib": "with_sb3",
    "sbx": "with_sbx",
    "axiomrl": "with_axiomrl",
    "corl": "with_corl",
    "corl-jax": "with_corl_jax",
    "fql-authors": "with_fql",
    "jax-corl": "with_jax_corl",
    "jax-corl-shipped": "with_jax_corl",
}


@dataclass(frozen=True)
class Comparison:
    counted: bool
    note: str


def same(note: str = "") -> Comparison:
    return Comparison(True, note)


def other(reason: str) -> Comparison:
    return Comparison(False, reason)


FIXED_ALPHA = "different loss, not counted: the temperature is fixed, its loss and optimiser are missing"
OTHER_CQL = (
    "different loss, not counted: 20 actions per state instead of 30 and no importance weights; "
    "the temperature is fixed"
)
TWO_LAYERS = "two hidden layers instead of its three"
SHIPPED = "networks as in its scripts, not counted: "
TARGET_ACTOR = "next action from a slow copy of the actor"

COMPARISONS: dict[str, dict[str, Comparison]] = {
    "bc": {"d3rlpy": same(), "axiomrl": same()},
    "td3_bc": {
        "d3rlpy": same(),
        "corl": same(),
        "axiomrl": same("evaluates both critics for the actor, uses one"),
        "jax-corl": same("without the layer normalisation of its critics"),
        "jax-corl-shipped": other(f"{SHIPPED}layer normalisation in the critics"),
    },
    "awac": {
        "d3rlpy": same("softmax weights and tanh-mean Gaussian as ours; its target adds an entropy term"),
        "corl": same(f"{TWO_LAYERS}; exp weights, Gaussian with clipped actions"),
        "axiomrl": same(f"exp weights, squashed Gaussian; {TARGET_ACTOR}"),
        "jax-corl": same("two hidden layers in the actor, no layer normalisation; exp weights"),
        "jax-corl-shipped": other(f"{SHIPPED}layer normalisation in the critics, four layers in the actor"),
    },
    "crr": {
        "d3rlpy": same("two critics set; advantages from their mean instead of their minimum"),
        "axiomrl": same("the advantage sees the critics after their step"),
    },
    "iql": {
        "d3rlpy": same(),
        "corl": same(),
        "axiomrl": same("squashed Gaussian actor with a state-dependent spread"),
        "jax-corl": same("without the layer normalisation of its value network"),
        "jax-corl-shipped": other(f"{SHIPPED}layer normalisation in the value network"),
    },
    "cql": {
        "d3rlpy": same("no Lagrange multiplier, soft backup on both sides"),
        "corl": same(f"{TWO_LAYERS}; no Lagrange multiplier, soft backup on both sides"),
        "axiomrl": other(OTHER_CQL),
        "jax-corl": same("no Lagrange multiplier, soft backup on both sides"),
    },
    "cal_ql": {
        "d3rlpy": same("no Lagrange multiplier, soft backup on both sides"),
        "axiomrl": other(OTHER_CQL),
    },
    "sac": {"sb3": same(), "d3rlpy": same(), "sbx": same(), "axiomrl": other(FIXED_ALPHA)},
    "tqc": {
        "sb3-contrib": same("two critics, 25 quantiles, two dropped per critic on both sides"),
        "sbx": same("two critics, 25 quantiles, two dropped per critic on both sides"),
        "axiomrl": other(FIXED_ALPHA),
    },
    "redq": {
        "axiomrl": same(
            "ten critics, two in the target, fixed temperature and an actor step per update on both sides; "
            + TARGET_ACTOR
        )
    },
    "td3": {"sb3": same(), "d3rlpy": same(), "sbx": same()},
    "rebrac": {
        "d3rlpy": same("layer normalisation in the critics on both sides"),
        "corl-jax": same(f"{TWO_LAYERS}; layer normalisation in the critics on both sides"),
    },
    "edac": {"corl": same(f"{TWO_LAYERS}; ten critics")},
    "dqn": {
        "d3rlpy": same("its copy of the network is made every 8,000 updates, ours moves with each"),
        "sb3": same("not double, a pass less than ours; its copy is made every 10,000 steps"),
    },
    "discrete_cql": {"d3rlpy": same("its copy of the network is made every 8,000 updates")},
    "fql": {"fql-authors": same("two hidden layers instead of its four")},
}
ALGORITHMS = tuple(COMPARISONS)

STEP_PEERS = ("sb3", "sbx", "d3rlpy")
"""Peers whose SAC is timed with an environment."""


def counted(algo: str, peers: tuple[str, ...]) -> list[str]:
    """Peers of a kind that compute the same loss."""
    return [name for name, entry in COMPARISONS[algo].items() if entry.counted and name in peers]
