"""A policy as plain data and tensors, and back: what a checkpoint stores under `policy`.

Nothing of the algorithm is needed to rebuild it. Actors and networks are found by their registered names;
where one is missing, the message names the package that had it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from rl_training.config import ConfigModel, setting
from rl_training.config.limits import MAX_CRITICS
from rl_training.core.errors import CheckpointError, ConfigError, UserError
from rl_training.core.plain import Facts, State
from rl_training.core.registry import Registry
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import transform_from_state, transform_state
from rl_training.models.actors import Actor, GaussianActor
from rl_training.models.critic_weighted import CriticWeighted
from rl_training.models.critics import QEnsemble
from rl_training.models.network_settings import NetworkPlan
from rl_training.models.networks import NETWORKS, Network
from rl_training.models.noisy import NoisyActor
from rl_training.policies.guard import unpack_guard
from rl_training.policies.policy import Policy

ACTORS: Registry[type[Actor]] = Registry(
    "actor",
    "rl_training.actors",
    {
        "deterministic": "rl_training.models.actors:DeterministicTanh",
        "squashed": "rl_training.models.actors:SquashedGaussian",
        "unbounded": "rl_training.models.actors:UnboundedGaussian",
        "tanh_mean": "rl_training.models.actors:TanhMeanGaussian",
        "sigmoid_std": "rl_training.models.actors:SigmoidStdGaussian",
        "one_step": "rl_training.models.flow:OneStepActor",
    },
)


def register_actor(actor: type[Actor]) -> None:
    """Make a kind of actor known to files, under its `kind`."""
    if not (isinstance(actor, type) and issubclass(actor, Actor)):
        raise ConfigError(f"register_actor takes a subclass of Actor, got {actor!r}")
    ACTORS.register(actor.kind, actor)


class ActorFacts(ConfigModel):
    """What a file says of an actor with one network."""

    kind: str = setting(..., "kind of actor")
    obs_dim: int = setting(..., "numbers of an observation", ge=1)
    action_dim: int = setting(..., "numbers of an action", ge=1)
    network: State = setting(..., "the network as plain data")
    network_package: str | None = setting(None, "package that brought the network")
    options: dict[str, float | None] = setting({}, "what else the actor needs")


class CriticFacts(ConfigModel):
    """What a file says of the critics that an actor consults."""

    num_critics: int = setting(..., "critics in the ensemble", ge=1, most=MAX_CRITICS)
    network: State = setting(..., "the network as plain data")
    network_package: str | None = setting(None, "package that brought the network")
    cap: float | None = setting(None, "upper limit of the values")


def pack_policy(policy: Policy, member: int | None = None) -> State:
    """Everything needed to act, of one seed where the actor is a stack of them; tensors are copies."""
    single = policy.snapshot(member, exact=False)
    packed = {
        "actor": describe_actor(single.actor),
        "tensors": dict(single.actor.state_dict()),
        "spaces": single.spaces.to_dict(),
        "observation_steps": [transform_state(step) for step in single.observation_steps],
    }
    return packed if single.guard is None else {**packed, "guard": single.guard.pack()}


def unpack_policy(packed: Facts, device: torch.device | str = "cpu") -> Policy:
    """The policy that was packed, in single precision as it was learned."""
    try:
        refuse_false_sizes(packed["actor"], packed["tensors"])
        actor = build_actor(packed["actor"])
        load_tensors(actor, packed["tensors"])
        steps = [transform_from_state(step) for step in packed["observation_steps"]]
        spaces = Spaces.from_dict(packed["spaces"])
        guard = None if packed.get("guard") is None else unpack_guard(packed["guard"], spaces)
        policy = Policy(actor, spaces, steps, guard)
        with torch.no_grad():
            actions = policy(torch.zeros(2, policy.spaces.obs_dim))
        if actions.shape != (2, policy.spaces.action_dim) or not actions.isfinite().all():
            raise CheckpointError(
                f"the saved policy must give {policy.spaces.action_dim} finite numbers for an observation"
            )
        return policy.to(device)
    except UserError:
        raise
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RuntimeError) as problem:
        text = " ".join(str(problem).split())
        raise CheckpointError(
            f"the saved policy makes no sense ({type(problem).__name__}: {text})"
        ) from problem


def describe_actor(actor: Actor) -> State:
    """An actor as plain data."""
    if isinstance(actor, CriticWeighted):
        return {
            "kind": actor.kind,
            "actor": describe_actor(actor.actor),
            "critic": describe_critic(actor.critic),
            "samples": actor.samples,
            "temperature": actor.temperature,
        }
    if isinstance(actor, NoisyActor):
        return {"kind": actor.kind, "actor": describe_actor(actor.actor), "sigma": actor.sigma}
    facts = ActorFacts(
        kind=actor.kind,
        obs_dim=actor.obs_dim,
        action_dim=actor.action_dim,
        **describe_network(actor.net),
        options=actor.options(),
    )
    return facts.to_dict()


def describe_critic(critic: QEnsemble) -> State:
    return CriticFacts(
        num_critics=critic.num_critics, cap=critic.cap, **describe_network(critic.net)
    ).to_dict()


def describe_network(network: Network) -> State:
    plan = network.plan
    return {"network": plan.to_dict(), "network_package": NETWORKS.package_of(plan.network)}


def build_actor(described: Facts) -> Actor:
    """The actor that `describe_actor` described, with weights yet to be loaded."""
    if described.get("kind") == CriticWeighted.kind:
        actor = build_actor(described["actor"])
        assert isinstance(actor, GaussianActor)
        facts = CriticFacts.build(described["critic"], where="policy.critic")
        sizes = (actor.obs_dim, actor.action_dim, facts.num_critics)
        critic = QEnsemble(*sizes, saved_plan(facts.network, facts.network_package), cap=facts.cap)
        return CriticWeighted(actor, critic, int(described["samples"]), float(described["temperature"]))
    if described.get("kind") == NoisyActor.kind:
        return NoisyActor(build_actor(described["actor"]), float(described["sigma"]))
    known = ActorFacts.build(described, where="policy.actor")
    plan = saved_plan(known.network, known.network_package)
    build: Callable[..., Actor] = ACTORS.get(known.kind)
    return build(known.obs_dim, known.action_dim, plan, **known.options)


def saved_plan(values: Facts, package: str | None) -> NetworkPlan:
    plan = NetworkPlan.build(values, where="policy.network")
    if plan.network not in NETWORKS:
        raise CheckpointError(missing_part("network", plan.network, package))
    return plan


def missing_part(kind: str, name: str, package: str | None) -> str:
    """The sentence for a part that a file needs and that nobody has registered."""
    origin = (
        f"the package {package!r} had it: install or import it" if package else "nothing here provides it"
    )
    return f"this file needs the {kind} {name!r}, which is not registered; {origin}, then open the file again"


def refuse_false_sizes(described: Facts, tensors: Mapping[str, Tensor]) -> None:
    """Compare the sizes a file declares with the tensors in it before memory is taken for them."""
    try:
        with torch.device("meta"):
            outline = build_actor(described)
    except (RuntimeError, NotImplementedError, ValueError) as problem:
        if isinstance(problem, UserError):
            raise
        return  # a registered network that cannot be built without memory
    refuse_other_shapes(outline, tensors)


def load_tensors(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Weights by name; a missing, extra, misshapen or broken one is named."""
    refuse_other_shapes(module, tensors)
    for name, tensor in tensors.items():
        if not bool(tensor.isfinite().all()):
            raise CheckpointError(f"policy tensor {name} holds NaN or infinity")
    module.load_state_dict(dict(tensors))


def refuse_other_shapes(module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    wanted = module.state_dict()
    for name in sorted(wanted.keys() | tensors.keys()):
        found = tuple(tensors[name].shape) if name in tensors else "nothing"
        expected = tuple(wanted[name].shape) if name in wanted else "nothing"
        if found != expected:
            raise CheckpointError(f"policy tensor {name} must have shape {expected}, found {found}")
