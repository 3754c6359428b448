"""Worker side of FQL's own code (seohongpark/fql, JAX): its compiled update, networks as large as ours."""

from __future__ import annotations

import sys
from typing import Any

import jax
import jax.numpy as jnp
from batches import Arrays, endless
from protocol import ACTION_DIM, OBS_DIM, Meter, Spec

FIELDS = {"observations": "obs", "actions": "actions", "rewards": "rewards", "next_observations": "next_obs"}


def to_batch(batch: Arrays) -> dict[str, Any]:
    fields = {name: jnp.asarray(batch[ours]) for name, ours in FIELDS.items()}
    return {**fields, "masks": jnp.asarray(1.0 - batch["dones"])}


def updates(spec: Spec) -> None:
    sys.path.insert(0, spec.checkout)
    from agents.fql import FQLAgent, get_config

    config = get_config()
    config["actor_hidden_dims"] = config["value_hidden_dims"] = spec.widths
    agent = FQLAgent.create(0, jnp.zeros((1, OBS_DIM)), jnp.zeros((1, ACTION_DIM)), config)
    batches = endless(spec, to_batch)
    held = [agent]

    def update() -> None:
        held[0], info = held[0].update(next(batches))
        jax.block_until_ready(info)

    Meter().repeat(update)


KINDS = {"update": updates}
