"""Public JAX code: CORL's ReBRAC and the authors' FQL.

Two defaults of flax are set to PyTorch's before the foreign code is imported: the 1e-5 in layer normalisation
(flax: 1e-6) and the exact GELU (flax: an approximation by tanh).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import flax.linen
import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from common import ACTIONS, OBS, Case, load_module
from torch import Tensor, nn

from rl_training import models
from rl_training.algorithms import FQL, ReBRAC
from rl_training.models.layers import LayerNorm
from rl_training.models.networks import MLP

Batch = Mapping[str, Tensor]
Tree = dict[str, Any]

jax.config.update("jax_enable_x64", True)
flax.linen.LayerNorm = functools.partial(flax.linen.LayerNorm, epsilon=1e-5)
flax.linen.gelu = functools.partial(flax.linen.gelu, approximate=False)


def array(values: Tensor) -> jax.Array:
    return jnp.asarray(values.detach().numpy())


def tensor(values: jax.Array) -> Tensor:
    return torch.from_numpy(np.array(values))


@contextmanager
def jax_noise(normal: Sequence[Tensor], uniform: Sequence[Tensor]) -> Iterator[None]:
    """Foreign JAX code draws these numbers, and zeros where it draws more (for its own statistics)."""
    queues = {"normal": list(normal), "uniform": list(uniform)}
    saved = (jax.random.normal, jax.random.uniform)

    def take(kind: str) -> Callable[..., jax.Array]:
        def draw(key: Any, shape: Sequence[int], *_: Any, **__: Any) -> jax.Array:
            queue = queues[kind]
            return array(queue.pop(0)).reshape(shape) if queue else jnp.zeros(shape)

        return draw

    jax.random.normal, jax.random.uniform = take("normal"), take("uniform")
    try:
        with jax.disable_jit():
            yield
    finally:
        jax.random.normal, jax.random.uniform = saved
    if any(queues.values()):
        raise RuntimeError("some draws were left over")


def own_tree(net: nn.Module) -> dict[str, dict[str, Tensor]]:
    """One of our networks under flax's names."""
    assert isinstance(net, MLP)
    tree: dict[str, dict[str, Tensor]] = {}
    for index, layer in enumerate((*net.hidden, net.output)):
        tree[f"Dense_{index}"] = {"kernel": layer.weight, "bias": layer.bias.squeeze(-2)}  # type: ignore[dict-item, operator, union-attr]
    for index, norm in enumerate(net.norms):
        assert isinstance(norm, LayerNorm)
        tree[f"LayerNorm_{index}"] = {"scale": norm.scale.squeeze(-2), "bias": norm.shift.squeeze(-2)}
    return tree


def filled(tree: Tree, net: nn.Module) -> Tree:
    """A tree of flax parameters, however deep, with our weights."""
    if "Dense_0" in tree:
        own = own_tree(net)
        if own.keys() != tree.keys():
            raise ValueError(f"layers differ: {sorted(own)} against {sorted(tree)}")
        return {layer: {name: array(value) for name, value in own[layer].items()} for layer in tree}
    return {name: filled(inner, net) for name, inner in tree.items()}


def tree_pairs(net: nn.Module, tree: Tree) -> Iterator[tuple[Tensor, Tensor]]:
    if "Dense_0" in tree:
        for layer, values in own_tree(net).items():
            for name, value in values.items():
                yield value.detach(), tensor(tree[layer][name])
    else:
        for inner in tree.values():
            yield from tree_pairs(net, inner)


def rebrac(checkout: Path) -> Case:
    module = load_module(checkout / "algorithms" / "offline" / "rebrac.py")
    weights = {"actor_bc_coef": 0.01, "critic_bc_coef": 0.1}
    learner = ReBRAC(models.MLPReBRACModel(OBS, ACTIONS), policy_delay=2, **weights)
    actor = module.DetActor(ACTIONS, 256, False, 3)
    critic = module.EnsembleCritic(256, 2, True, 3)
    obs, actions = jnp.zeros((1, OBS)), jnp.zeros((1, ACTIONS))
    key = jax.random.PRNGKey(0)
    trees = {
        "actor": filled(actor.init(key, obs), learner.actor.net),
        "critic": filled(critic.init(key, obs, actions), learner.critic.net),
    }

    def state(kind: Any, network: Any, tree: Tree) -> Any:
        return kind.create(
            apply_fn=network.apply,
            params=tree,
            target_params=tree,
            tx=optax.adam(learner.config.learning_rate),
        )

    states = {
        "actor": state(module.ActorTrainState, actor, trees["actor"]),
        "critic": state(module.CriticTrainState, critic, trees["critic"]),
    }
    names = ("critic_loss", "q_min", "actor_loss", "bc_mse_policy", "bc_mse_random", "action_mse")
    shared = {**weights, "gamma": 0.99, "tau": 0.005, "policy_noise": 0.2, "noise_clip": 0.5}
    foreign = {
        "obs": "states",
        "actions": "actions",
        "rewards": "rewards",
        "next_obs": "next_states",
        "next_actions": "next_actions",
        "dones": "dones",
    }

    def update(batch: Batch, noise: Batch) -> None:
        given = {theirs: array(batch[ours]) for ours, theirs in foreign.items()}
        metrics = module.Metrics.create(names)
        full = learner.stage() == "full"
        function = (
            functools.partial(module.update_td3, normalize_q=True) if full else module.update_td3_no_targets
        )
        with jax_noise([noise["next"]], []):
            _, states["actor"], states["critic"], _ = function(
                key, states["actor"], states["critic"], given, metrics=metrics, **shared
            )

    def pairs() -> Iterable[tuple[Tensor, Tensor]]:
        for name, own in (("actor", learner.actor), ("critic", learner.critic)):
            yield from tree_pairs(own.net, states[name].params)
        yield from tree_pairs(learner.target_actor.net, states["actor"].target_params)
        yield from tree_pairs(learner.target_critic.net, states["critic"].target_params)

    return Case(learner, update, pairs)


def fql(checkout: Path) -> Case:
    sys.path.insert(0, str(checkout))
    from agents.fql import FQLAgent, get_config

    widths = (128, 128)
    learner = FQL(models.MLPFQLModel(OBS, ACTIONS, hidden_sizes=widths), alpha=10.0)
    config = get_config()
    config["actor_hidden_dims"] = config["value_hidden_dims"] = widths
    agent = FQLAgent.create(0, jnp.zeros((1, OBS)), jnp.zeros((1, ACTIONS)), config)
    own = {
        "modules_actor_onestep_flow": learner.actor.net,
        "modules_actor_bc_flow": learner.flow.net,
        "modules_critic": learner.critic.net,
        "modules_target_critic": learner.target_critic.net,
    }
    params = {name: filled(dict(tree), own[name]) for name, tree in agent.network.params.items()}
    network = agent.network.replace(params=params, opt_state=agent.network.tx.init(params))
    held = {"agent": agent.replace(network=network)}

    def update(batch: Batch, noise: Batch) -> None:
        given = {
            "observations": array(batch["obs"]),
            "actions": array(batch["actions"]),
            "rewards": array(batch["rewards"]),
            "next_observations": array(batch["next_obs"]),
            "masks": array(1.0 - batch["dones"]),
        }
        times = (noise["time"] + 1.0) / 2.0
        with jax_noise([noise["next"], noise["start"], noise["current"]], [times]):
            held["agent"], _ = held["agent"].update(given)

    def pairs() -> Iterable[tuple[Tensor, Tensor]]:
        for name, net in own.items():
            yield from tree_pairs(net, held["agent"].network.params[name])

    return Case(learner, update, pairs)


CASES: dict[str, tuple[str, Callable[[Path], Case]]] = {"rebrac": ("corl", rebrac), "fql": ("fql", fql)}
