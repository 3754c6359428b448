"""Which network passes one update of each algorithm needs: a short description, from which the floor follows.

A pass is needed if no cleverness could leave it out: an actor that is asked twice about the same states with
the same weights runs once, and of many actions per state the state's half of the first layer is done once.
"""

from __future__ import annotations

from dataclasses import dataclass

from protocol import ACTION_DIM as A
from protocol import OBS_DIM as O
from protocol import Spec

CQL_ACTIONS = 31
"""Actions per state in the conservative term: ten from each of three sources, and the data's."""
CRR_ACTIONS = 4
ENSEMBLE, SUBSET = 10, 2
FLOW_STEPS = 10
QUANTILES = 25


@dataclass(frozen=True)
class Pass:
    """`rows` inputs through `members` networks of the given layer sizes."""

    sizes: tuple[int, ...]
    rows: int
    members: int = 1
    trained: bool = False
    """Gradients of the weights are needed."""
    wanted_inputs: int = 0
    """Inputs of the first layer whose gradient is needed."""
    every: int = 1
    """One update in so many makes this pass (delayed actors)."""


def passes_of(spec: Spec) -> list[Pass]:
    return {
        "bc": behaviour_cloning,
        "td3_bc": td3,
        "awac": awac,
        "crr": crr,
        "iql": iql,
        "cql": conservative,
        "cal_ql": conservative,
        "sac": sac,
        "tqc": tqc,
        "redq": redq,
        "td3": td3,
        "rebrac": rebrac,
        "edac": edac,
        "fql": fql,
        "dqn": double_dqn,
        "discrete_cql": double_dqn,
    }[spec.algo](spec.batch, spec.hidden)


def actor(h: int, outputs: int) -> tuple[int, ...]:
    return (O, h, h, outputs)


def critic(h: int, outputs: int = 1) -> tuple[int, ...]:
    return (O + A, h, h, outputs)


def behaviour_cloning(b: int, h: int) -> list[Pass]:
    return [Pass(actor(h, A), b, trained=True)]


def delayed(b: int, h: int, climbed: int) -> list[Pass]:
    """TD3 and its relatives, whose actor climbs one critic or the lower of both."""
    return [
        Pass(actor(h, A), b),
        Pass(critic(h), b, members=2),
        Pass(critic(h), b, members=2, trained=True),
        Pass(actor(h, A), b, trained=True, every=2),
        Pass(critic(h), b, members=climbed, wanted_inputs=A, every=2),
    ]


def td3(b: int, h: int) -> list[Pass]:
    return delayed(b, h, climbed=1)


def rebrac(b: int, h: int) -> list[Pass]:
    return delayed(b, h, climbed=2)


def iql(b: int, h: int) -> list[Pass]:
    return [
        Pass(critic(h), b, members=2),
        Pass((O, h, h, 1), b, trained=True),
        Pass((O, h, h, 1), 2 * b),  # V has moved: anew for the advantages, and for the next states
        Pass(actor(h, A), b, trained=True),
        Pass(critic(h), b, members=2, trained=True),
    ]


def awac(b: int, h: int) -> list[Pass]:
    return [
        Pass(actor(h, A), b),
        Pass(critic(h), b, members=2),
        Pass(critic(h), b, members=2, trained=True),
        Pass(critic(h), 2 * b, members=2),  # the critics have moved: the data's and the drawn action
        Pass(actor(h, A), b, trained=True),
    ]


def crr(b: int, h: int) -> list[Pass]:
    return [
        Pass(actor(h, 2 * A), b),
        Pass(critic(h), b, members=2),
        Pass(critic(h), b, members=2, trained=True),
        *many_actions(b, h, CRR_ACTIONS, trained=False),
        Pass(actor(h, 2 * A), b, trained=True),
    ]


def conservative(b: int, h: int) -> list[Pass]:
    return [
        Pass(actor(h, 2 * A), b),
        Pass(critic(h), b, members=2),
        *many_actions(b, h, CQL_ACTIONS, trained=True),
        Pass(actor(h, 2 * A), b, trained=True),
        Pass(critic(h), b, members=2, wanted_inputs=A),
    ]


def many_actions(b: int, h: int, count: int, *, trained: bool) -> list[Pass]:
    """Twin critics on several actions per state."""
    return [
        Pass((O, h), b, members=2, trained=trained),
        Pass((A, h, h, 1), count * b, members=2, trained=trained),
    ]


def soft_actor_critic(b: int, h: int, members: int, asked: int, outputs: int) -> list[Pass]:
    return [
        Pass(actor(h, 2 * A), b),
        Pass(critic(h, outputs), b, members=asked),
        Pass(critic(h, outputs), b, members=members, trained=True),
        Pass(actor(h, 2 * A), b, trained=True),
        Pass(critic(h, outputs), b, members=members, wanted_inputs=A),
    ]


def sac(b: int, h: int) -> list[Pass]:
    return soft_actor_critic(b, h, members=2, asked=2, outputs=1)


def tqc(b: int, h: int) -> list[Pass]:
    return soft_actor_critic(b, h, members=2, asked=2, outputs=QUANTILES)


def redq(b: int, h: int) -> list[Pass]:
    return soft_actor_critic(b, h, members=ENSEMBLE, asked=SUBSET, outputs=1)


def edac(b: int, h: int) -> list[Pass]:
    """The slopes are a pass through the critics backwards, which is itself trained."""
    slopes = Pass((1, h, h, A), b, members=ENSEMBLE, trained=True)
    return [*soft_actor_critic(b, h, members=ENSEMBLE, asked=ENSEMBLE, outputs=1), slopes]


def fql(b: int, h: int) -> list[Pass]:
    policy = (O + A, h, h, A)
    return [
        Pass(policy, b),
        Pass(critic(h), b, members=2),
        Pass(critic(h), b, members=2, trained=True),
        Pass((O + A + 1, h, h, A), b, trained=True),
        Pass((O, h), b),
        *[Pass((A + 1, h, h, A), b)] * FLOW_STEPS,
        Pass(policy, b, trained=True),
        Pass(critic(h), b, members=2, wanted_inputs=A),
    ]


def double_dqn(b: int, h: int) -> list[Pass]:
    """Values of the next states by the network and by its copy, and the network that learns."""
    return [Pass(actor(h, A), b), Pass(actor(h, A), b), Pass(actor(h, A), b, trained=True)]
