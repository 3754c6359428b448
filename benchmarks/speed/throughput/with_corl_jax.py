"""Worker side of what CORL has in JAX, its ReBRAC: its update functions in one compiled loop, as in CORL.

Two hidden layers instead of its three. Batches are drawn inside the compiled call, from as many rows as the
other candidates go through.
"""

from __future__ import annotations

from functools import partial
from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from batches import make_batches
from checkouts import load_script
from protocol import ACTION_DIM, OBS_DIM, Meter, Spec

UPDATES = 8
"""Of one call."""
FIELDS = {
    "states": "obs",
    "actions": "actions",
    "rewards": "rewards",
    "next_states": "next_obs",
    "next_actions": "next_actions",
    "dones": "dones",
}
METRICS = ("critic_loss", "q_min", "actor_loss", "bc_mse_policy", "bc_mse_random", "action_mse")
SHARED = {
    **{"gamma": 0.99, "actor_bc_coef": 0.01, "critic_bc_coef": 0.01, "tau": 0.005},
    **{"policy_noise": 0.2, "noise_clip": 0.5},
}


def states(script: ModuleType, width: int, key: Any) -> tuple[Any, Any]:
    """Actor and critic with their targets and optimisers."""
    obs, actions = jnp.zeros((1, OBS_DIM)), jnp.zeros((1, ACTION_DIM))
    actor = script.DetActor(ACTION_DIM, width, False, 2)
    critic = script.EnsembleCritic(width, 2, True, 2)
    made = []
    for kind, network, inputs in (
        (script.ActorTrainState, actor, (obs,)),
        (script.CriticTrainState, critic, (obs, actions)),
    ):
        weights = network.init(key, *inputs)
        made.append(
            kind.create(apply_fn=network.apply, params=weights, target_params=weights, tx=optax.adam(1e-3))
        )
    return made[0], made[1]


def updates(spec: Spec) -> None:
    jax.tree_map = jax.tree_util.tree_map  # its name when the script was written
    script = load_script(spec.checkout, f"algorithms/offline/{spec.algo}.py")
    parts = make_batches(spec)
    buffer = script.ReplayBuffer()
    buffer.data = {
        name: jnp.asarray(np.concatenate([part[ours] for part in parts])) for name, ours in FIELDS.items()
    }
    actor, critic = states(script, spec.hidden, jax.random.PRNGKey(0))
    full = partial(script.update_td3, normalize_q=True, **SHARED)
    critic_only = partial(script.update_td3_no_targets, **SHARED)

    def one(index: Any, carry: tuple[Any, ...]) -> tuple[Any, ...]:
        key, batch_key = jax.random.split(carry[0])
        batch = buffer.sample_batch(batch_key, batch_size=spec.batch)
        given = {"actor": carry[1], "critic": carry[2], "batch": batch, "metrics": carry[3]}
        chosen: tuple[Any, ...] = jax.lax.cond(
            index % 2 == 0, partial(full, key=key, **given), partial(critic_only, key=key, **given)
        )
        return chosen

    several = jax.jit(lambda carry: jax.lax.fori_loop(0, UPDATES, one, carry))
    held: list[Any] = [(jax.random.PRNGKey(1), actor, critic, script.Metrics.create(METRICS))]

    def call() -> None:
        held[0] = several(held[0])
        jax.block_until_ready(held[0][0])

    Meter(unit=UPDATES).repeat(call)


KINDS = {"update": updates}
