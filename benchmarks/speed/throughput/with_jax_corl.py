"""Worker side of JAX-CORL (nissymori/JAX-CORL): its own compiled call of eight updates.

`jax-corl` has networks as ours, `jax-corl-shipped` those of its scripts: layer normalisation in the critics
of TD3+BC and AWAC and in the value network of IQL, and an AWAC actor of four hidden layers (its CQL has
networks as ours, so that there is one candidate). Batches are drawn
inside the compiled call, from as many rows as the other candidates go through.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from batches import make_batches
from checkouts import load_script
from protocol import ACTION_DIM, Meter, Spec

NAMES = {"td3_bc": ("td3bc", "TD3BC"), "iql": ("iql", "IQL"), "awac": ("awac", "AWAC"), "cql": ("cql", "CQL")}
"""Algorithm -> name of the script and of its class."""

FIELDS = {"observations": "obs", "actions": "actions", "rewards": "rewards", "dones": "dones"}
FIELDS["next_observations"] = "next_obs"


def without_layer_norm(script: ModuleType) -> None:
    """All but CQL are made of `MLP`, which leaves the normalisation out where it is told to."""
    if not hasattr(script, "MLP"):
        return
    made = script.MLP

    def plain(*arguments: Any, **keywords: Any) -> Any:
        return made(*arguments, **(keywords | {name: False for name in keywords if "layer_norm" in name}))

    script.MLP = plain  # type: ignore[attr-defined]


def chosen_config(script: ModuleType, spec: Spec) -> Any:
    config = script.config
    widths = {name: spec.widths for name in type(config).model_fields if name.endswith("hidden_dims")}
    if spec.candidate == "jax-corl-shipped":
        widths = {name: (spec.hidden,) * len(getattr(config, name)) for name in widths}
    if spec.algo == "cql":  # what its own training sets, and the backup of our side
        widths |= {"action_dim": ACTION_DIM, "target_entropy": -float(ACTION_DIM), "backup_entropy": True}
    # model_copy does not check: some fields are annotated as pairs and hold four sizes
    chosen = config.model_copy(update={**widths, "batch_size": spec.batch})
    script.config = chosen  # type: ignore[attr-defined]  # CQL's actor reads it there
    return chosen


def updates(spec: Spec) -> None:
    file, class_name = NAMES[spec.algo]
    script = load_script(spec.checkout, f"algos/{file}.py")
    if spec.candidate != "jax-corl-shipped":
        without_layer_norm(script)
    config = chosen_config(script, spec)
    parts = make_batches(spec)
    rows = {name: np.concatenate([part[ours] for part in parts]) for name, ours in FIELDS.items()}
    rows |= {"masks": 1.0 - rows["dones"], "dones_float": rows["dones"]}
    data = script.Transition(**{name: jnp.asarray(rows[name]) for name in script.Transition._fields})
    create = getattr(script, f"create_{file}_train_state")
    key = jax.random.PRNGKey(0)
    state = create(key, data.observations[0], data.actions[0], config)
    update = jax.jit(getattr(script, class_name)().update_n_times, static_argnums=(3,))
    held: list[Any] = [state, key]

    def several() -> None:
        held[1], own = jax.random.split(held[1])
        held[0], info = update(held[0], data, own, config)
        jax.block_until_ready(info)

    Meter(unit=config.n_jitted_updates).repeat(several)


KINDS = {"update": updates}
