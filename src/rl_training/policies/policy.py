"""A policy: raw observations in, actions in the environment's own units out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rl_training.config import ConfigModel, setting
from rl_training.core.checkpoints import load_run_state
from rl_training.core.errors import CheckpointError, ConfigError, UserError
from rl_training.core.machine import choose_device
from rl_training.core.registry import Registry
from rl_training.core.schema import MAX_CRITICS
from rl_training.core.spaces import FeatureNames, FloatArray, Spaces
from rl_training.core.streams import torch_generator
from rl_training.core.transforms import Transform, transform_from_state, transform_state
from rl_training.core.types import Array, Facts, State
from rl_training.models.actors import (
    Actor,
    CriticWeighted,
    GaussianActor,
    NoisyActor,
    StochasticActor,
    TanhMeanGaussian,
)
from rl_training.models.choices import LevelCritics
from rl_training.models.critics import QEnsemble
from rl_training.models.networks import NETWORKS, Network, NetworkPlan
from rl_training.models.switching import HEADS, Budget, SwitchingActor
from rl_training.policies.acting import ActingPolicy, Memory
from rl_training.policies.guard import NO_GUARD, GuardFacts
from rl_training.policies.guard_fitting import Guard, unpack_guard
from rl_training.policies.inputs import Given, Inputs, SignalMemory, columns_of, inputs_of, rate_limit_of
from rl_training.policies.torch_signals import TorchRateLimit


class Policy(nn.Module, ActingPolicy):
    """Observation steps -> actor -> action units. Needs no environment, no learner, no file.

    A learner owns one that shares its actor and changes with it. `snapshot` gives one that stays as it is and
    computes in double precision, because single precision rounds large pre-activations visibly (by 6e-4 of an
    action at 1000 times the data's range), and differently in every library that runs the policy.
    """

    action_half: Tensor
    action_middle: Tensor
    action_low: Tensor
    action_high: Tensor

    def __init__(
        self,
        actor: Actor,
        spaces: Spaces,
        observation_steps: Sequence[Transform] = (),
        guard: Guard | None = None,
        memory: Memory | None = None,
        inputs: Inputs = (),
        counter: SignalMemory | None = None,
    ) -> None:
        super().__init__()
        self.actor, self.guard, self.memory, self.inputs = actor, guard, memory, inputs
        self.counter = counter
        # In a tuple, so that it is not registered twice; looking it up each time costs as much as a layer.
        self._first_weight = (next(actor.parameters()),)
        self.set_units(spaces, observation_steps)

    def set_units(self, spaces: Spaces, observation_steps: Sequence[Transform] = ()) -> None:
        """The units that observations come in and actions leave in."""
        asked = spaces.obs_dim if self.memory is None else self.memory.feature_dim
        takes = self.actor.obs_dim - len(self.inputs)
        if (asked, spaces.action_dim) != (takes, self.actor.action_dim):
            raise UserError(
                f"the policy's actor takes {takes} observations and gives "
                f"{self.actor.action_dim} actions, the spaces have {asked} and {spaces.action_dim}"
            )
        self.spaces = spaces
        self.observation_steps = tuple(step.to(self.device, self.dtype) for step in observation_steps)
        names = ("action_middle", "action_half", "action_low", "action_high")
        for name, values in zip(names, spaces.scale, strict=True):
            self.register_buffer(name, torch.from_numpy(values).to(self.device), persistent=False)
        self.rate_limit = rate_limit_of(self.memory)
        limit = self.rate_limit
        self._limit = None if limit is None else TorchRateLimit(limit, spaces, self.device)
        self._generator = torch_generator(0, "act", device=self.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Behind `to`, `double`, `cuda`: the observation steps go along."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.observation_steps = tuple(step.to(self.device, self.dtype) for step in self.observation_steps)
        if self.rate_limit is not None:
            self._limit = TorchRateLimit(self.rate_limit, self.spaces, self.device)
        return self

    @property
    def device(self) -> torch.device:
        return self._first_weight[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self._first_weight[0].dtype

    # ---- in torch: what every export computes

    def forward(self, obs: Tensor, *inputs: Tensor) -> Tensor:
        """The deterministic actions, float32, inside the bounds: `[B, obs_dim]` -> `[B, action_dim]`.

        Inputs come in the order of `inputs`, `[B, 1]` each; without them they are their defaults.
        """
        return self.to_units(self.actor.mode(self.asked(obs, *inputs)), obs)

    @property
    def has_distribution(self) -> bool:
        """Whether random actions come from one mean and log std."""
        return isinstance(self.actor, GaussianActor)

    def distribution(self, obs: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log std in [-1, 1] units; the actor's `draws` says how an action is made of them."""
        actor = self.actor
        if not isinstance(actor, GaussianActor):
            raise UserError(
                f"distribution must be off: this policy ({actor.kind}) has no single mean and log_std: "
                f"{actor.draws}"
            )
        mean, log_std = actor.distribution(self.asked(obs, *inputs))
        return mean.float(), (
            mean * 0.0 + log_std
        ).float()  # one row each, also where it is free of the state

    def novelty(self, obs: Tensor, actions: Tensor) -> Tensor:
        """How far from the data this is, `[B, 1]`; 1 is the guard's limit."""
        if self.guard is None:
            raise UserError(NO_GUARD)
        return self.guard(self.guard.points(obs, actions))  # type: ignore[no-any-return]  # a module's call

    def asked(self, obs: Tensor, *inputs: Tensor) -> Tensor:
        """What the actor takes: prepared observations, and the inputs behind them, kept in their bounds."""
        return self.joined(self.prepared(obs), *inputs)

    def joined(self, prepared: Tensor, *inputs: Tensor) -> Tensor:
        """Prepared observations `[…, B, O]` with the inputs, or their defaults, behind them."""
        if not self.inputs:
            return prepared
        defaults = (torch.full_like(prepared[..., :1], each.default) for each in self.inputs)
        chosen = (
            given.to(prepared.dtype).clamp(each.low, each.high)
            for given, each in zip(inputs or defaults, self.inputs, strict=True)
        )
        return torch.cat([prepared, *chosen], dim=-1)

    def prepared(self, obs: Tensor) -> Tensor:
        """Observations in the actor's units."""
        values = obs.to(self.dtype)
        for step in self.observation_steps:
            values = step.apply(values)
        return values

    def to_units(self, unit: Tensor, obs: Tensor) -> Tensor:
        """[-1, 1] -> the environment's units, clipped so that rounding never leaves the bounds, and to what
        may follow the last action where there is a rate limit.
        """
        actions = self.decoded(unit)
        if self._limit is None:
            return actions
        return self._limit.limited(actions, obs, self.action_low, self.action_high)

    def decoded(self, unit: Tensor) -> Tensor:
        """The same without a rate limit."""
        if self.spaces.choices:
            return self.spaces.decode_tensor(unit)
        actions = torch.addcmul(self.action_middle, unit, self.action_half).float()
        return actions.clamp(self.action_low, self.action_high)

    # ---- in arrays

    def act(self, obs: Array, deterministic: bool = True, **inputs: npt.ArrayLike | None) -> FloatArray:
        with torch.inference_mode():
            given = self._given(obs)
            unit = self._unit(given, deterministic, inputs)
            actions: FloatArray = self.to_units(unit, given).cpu().numpy()
        return actions

    def act_unit(self, obs: Array, deterministic: bool = True, **inputs: npt.ArrayLike | None) -> FloatArray:
        """The same in [-1, 1], as learners see actions."""
        with torch.inference_mode():
            unit = self._unit(self._given(obs), deterministic, inputs)
            actions: FloatArray = unit.float().cpu().numpy()
        return self.limited_unit(actions, np.asarray(obs))

    def limited_unit(self, unit: FloatArray, obs: Array) -> FloatArray:
        """Actions in [-1, 1] as they may run on what the policy is asked with."""
        if self.rate_limit is None:
            return unit
        before, wanted = self.rate_limit.before(obs, self.spaces), self.spaces.to_env(unit)
        return self.spaces.to_unit(self.rate_limit.limited(wanted, before, self.spaces))

    @property
    def guard_facts(self) -> GuardFacts | None:
        return None if self.guard is None else self.guard.facts

    def act_with_novelty(
        self, obs: FloatArray, **inputs: npt.ArrayLike | None
    ) -> tuple[FloatArray, FloatArray]:
        rows = torch.from_numpy(obs).to(self.device)
        with torch.inference_mode():
            actions = self(rows, *self._columns(inputs, len(rows)))
            novelty = self.novelty(rows, actions)
        return actions.cpu().numpy(), novelty.cpu().numpy()

    def _columns(self, inputs: Given, rows: int) -> list[Tensor]:
        columns = columns_of(self.inputs, inputs, rows)
        return [torch.from_numpy(values).to(self.device) for values in columns.values()]

    def _unit(self, given: Tensor, deterministic: bool, inputs: Given) -> Tensor:
        # without inputs there is nothing to look up: it would take a twentieth of the time of a small policy
        columns = self._columns(inputs, given.shape[-2]) if self.inputs or inputs else ()
        asked = self.asked(given, *columns)
        if deterministic:
            return self.actor.mode(asked)
        shape = (len(given), self.actor.noise_size)
        noise = torch.randn(shape, generator=self._generator, device=self.device)
        return self.actor.draw(asked, noise.to(self.dtype))

    def _given(self, obs: Array) -> Tensor:
        """Observations are single precision, as environments give them, whatever is computed in."""
        return torch.from_numpy(np.asarray(obs, dtype=np.float32)).to(self.device)

    def snapshot(self, member: int | None = None, *, exact: bool = True) -> Policy:
        """A policy of its own as it is now, of one seed where the actor is a stack of them.

        `exact` computes in double precision; Apple's GPUs have none, so there it acts on the CPU.
        """
        actor = copy.deepcopy(self.actor).requires_grad_(False)
        device = torch.device("cpu") if exact and self.device.type == "mps" else self.device
        for tensor in (*actor.parameters(), *actor.buffers()):
            values = tensor.data if member is None else tensor.data[member]
            tensor.data = values.to(device, torch.float64 if exact else tensor.dtype, copy=True)
        guard = None if self.guard is None else copy.deepcopy(self.guard).to(device)
        steps = self.observation_steps
        return Policy(actor, self.spaces, steps, guard, self.memory, self.inputs, self.counter)

    def without_counting(self) -> Policy:
        """The same policy as it acts in the first step of an episode, in every step: it counts nothing."""
        other = copy.copy(self)
        fixed = (
            replace(each, low=each.default, high=each.default, counted=False) if each.counted else each
            for each in self.inputs
        )
        other.inputs, other.counter = tuple(fixed), None
        return other


# A policy as plain data and tensors, and back: what a checkpoint stores under `policy`.


ACTORS: Registry[type[Actor]] = Registry(
    "actor",
    "rl_training.actors",
    {
        "deterministic": "rl_training.models.actors:DeterministicTanh",
        "dialled": "rl_training.models.actors:DialledTanh",
        "squashed": "rl_training.models.actors:SquashedGaussian",
        "unbounded": "rl_training.models.actors:UnboundedGaussian",
        "tanh_mean": "rl_training.models.actors:TanhMeanGaussian",
        "sigmoid_std": "rl_training.models.actors:SigmoidStdGaussian",
        "one_step": "rl_training.models.actors:OneStepActor",
        "factored": "rl_training.models.choices:FactoredActor",
        "epsilon_greedy": "rl_training.models.choices:EpsilonGreedy",
    },
)


def register_actor(actor: type[Actor]) -> None:
    """Make a kind of actor known to files, under its `kind`."""
    if not (isinstance(actor, type) and issubclass(actor, Actor)):
        raise ConfigError(f"register_actor takes a subclass of Actor, got {actor!r}")
    ACTORS.register(actor.kind, actor)


MEMORIES: Registry[Callable[..., Memory]] = Registry(
    "memory", "rl_training.memories", {"signals": "rl_training.policies.inputs:SignalMemory"}
)


def register_memory(memory: type[Memory]) -> None:
    """Make a kind of memory known to checkpoints, under its `kind`."""
    if not (isinstance(memory, type) and isinstance(getattr(memory, "kind", None), str)):
        raise ConfigError(f"register_memory takes a class with a kind, got {memory!r}")
    MEMORIES.register(memory.kind, memory)


class ActorFacts(ConfigModel):
    """What a file says of an actor with one network."""

    kind: str = setting(..., "kind of actor")
    obs_dim: int = setting(..., "numbers of an observation", ge=1)
    action_dim: int = setting(..., "numbers of an action", ge=1)
    network: State = setting(..., "the network as plain data")
    network_package: str | None = setting(None, "package that brought the network")
    options: dict[str, float | list[int] | str | None] = setting({}, "what else the actor needs")


class CriticFacts(ConfigModel):
    """What a file says of the critics that an actor consults."""

    num_critics: int = setting(..., "critics in the ensemble", ge=1, most=MAX_CRITICS)
    network: State = setting(..., "the network as plain data")
    network_package: str | None = setting(None, "package that brought the network")
    cap: float | None = setting(None, "upper limit of the values")
    levels: list[int] | None = setting(None, "levels of each choice, of critics with a value for each action")


def pack_policy(policy: Policy, member: int | None = None) -> State:
    """Everything needed to act, of one seed where the actor is a stack of them; tensors are copies."""
    single = policy.snapshot(member, exact=False)
    packed: State = {
        "actor": describe_actor(single.actor),
        "tensors": dict(single.actor.state_dict()),
        "spaces": single.spaces.to_dict(),
        "observation_steps": [transform_state(step) for step in single.observation_steps],
    }
    if single.guard is not None:
        packed["guard"] = single.guard.pack()
    if single.inputs:
        packed["inputs"] = [each.to_dict() for each in single.inputs]
    if single.counter is not None:
        packed["counter"] = single.counter.to_dict()
    if (memory := single.memory) is not None:
        package = MEMORIES.package_of(memory.kind)
        packed["memory"] = {"kind": memory.kind, "package": package, "settings": memory.to_dict()}
    return packed


def unpack_policy(packed: Facts, device: torch.device | str = "cpu") -> Policy:
    """The policy that was packed, in single precision as it was learned."""
    try:
        refuse_false_sizes(packed["actor"], packed["tensors"])
        actor = build_actor(packed["actor"])
        load_tensors(actor, packed["tensors"])
        steps = [transform_from_state(step) for step in packed["observation_steps"]]
        spaces = Spaces.from_dict(packed["spaces"])
        memory = None if packed.get("memory") is None else build_memory(packed["memory"])
        asked = spaces if memory is None else replace(spaces, obs_dim=memory.feature_dim)
        guard = None if packed.get("guard") is None else unpack_guard(packed["guard"], asked)
        inputs = inputs_of(packed.get("inputs"))
        counter = None if packed.get("counter") is None else SignalMemory(**packed["counter"])
        policy = Policy(actor, spaces, steps, guard, memory, inputs, counter)
        with torch.no_grad():
            actions = policy(torch.zeros(2, actor.obs_dim - len(inputs)))
        if actions.shape != (2, policy.spaces.action_columns) or not actions.isfinite().all():
            raise CheckpointError(
                f"the saved policy must give {policy.spaces.action_columns} finite numbers for an observation"
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
    if isinstance(actor, SwitchingActor):
        return {
            "kind": actor.kind,
            "actor": describe_actor(actor.heads),
            "critic": describe_critic(actor.critic),
            "cost_critic": describe_critic(actor.cost_critic),
            "budget": actor.budget.to_dict(),
        }
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
        num_critics=critic.num_critics,
        cap=critic.cap,
        levels=critic.levels if isinstance(critic, LevelCritics) else None,
        **describe_network(critic.net),
    ).to_dict()


def describe_network(network: Network) -> State:
    plan = network.plan
    return {"network": plan.to_dict(), "network_package": NETWORKS.package_of(plan.network)}


def build_actor(described: Facts) -> Actor:
    """The actor that `describe_actor` described, with weights yet to be loaded."""
    if described.get("kind") == CriticWeighted.kind:
        actor = build_actor(described["actor"])
        assert isinstance(actor, StochasticActor)
        critic = build_critic(actor.obs_dim, actor.action_dim, described["critic"])
        return CriticWeighted(actor, critic, int(described["samples"]), float(described["temperature"]))
    if described.get("kind") == NoisyActor.kind:
        return NoisyActor(build_actor(described["actor"]), float(described["sigma"]))
    if described.get("kind") == SwitchingActor.kind:
        heads, budget = (
            build_actor(described["actor"]),
            Budget.build(described["budget"], where="policy.budget"),
        )
        assert isinstance(heads, TanhMeanGaussian)
        sizes = (heads.obs_dim, heads.action_dim // HEADS)
        critic, cost_critic = (build_critic(*sizes, described[name]) for name in ("critic", "cost_critic"))
        return SwitchingActor(heads, critic, cost_critic, budget)
    known = ActorFacts.build(described, where="policy.actor")
    plan = saved_plan(known.network, known.network_package)
    build: Callable[..., Actor] = ACTORS.get(known.kind)
    return build(known.obs_dim, known.action_dim, plan, **known.options)


def build_critic(obs_dim: int, action_dim: int, described: Facts) -> QEnsemble:
    facts = CriticFacts.build(described, where="policy.critic")
    plan = saved_plan(facts.network, facts.network_package)
    if facts.levels is not None:
        return LevelCritics(obs_dim, facts.levels, facts.num_critics, plan, cap=facts.cap)
    return QEnsemble(obs_dim, action_dim, facts.num_critics, plan, cap=facts.cap)


def saved_plan(values: Facts, package: str | None) -> NetworkPlan:
    plan = NetworkPlan.build(values, where="policy.network")
    if plan.network not in NETWORKS:
        raise CheckpointError(missing_part("network", plan.network, package))
    return plan


def build_memory(packed: Facts) -> Memory:
    if packed["kind"] not in MEMORIES:
        raise CheckpointError(missing_part("memory", packed["kind"], packed["package"]))
    return MEMORIES.get(packed["kind"])(**packed["settings"])


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


# The policy of a checkpoint: read alone, without the learner it came from.


BESIDE_THE_LEARNER = ("replay", "collector", "exploration", "streams", "callbacks")
"""Parts of a checkpoint that only training on needs."""

NOT_FOR_ACTING = ("learner", *BESIDE_THE_LEARNER)
"""Parts of a checkpoint that nobody who only acts has to read."""


def load_saved_policy(path: str | Path, device: str = "auto") -> Policy:
    """The saved policy, complete: network, scaling, bounds; it computes in double precision."""
    return policy_of_state(load_run_state(path, skip=NOT_FOR_ACTING), choose_device(device), path)


def policy_of_state(
    state: Facts, device: torch.device | str = "cpu", source: str | Path = "checkpoint"
) -> Policy:
    """The policy in a run's state."""
    if "policy" not in state:
        raise CheckpointError(f"{source} holds no policy; give a checkpoint of a training run")
    try:
        policy = unpack_policy(state["policy"], device).snapshot()
    except UserError as problem:
        raise CheckpointError(f"{source}: {problem}") from problem
    data = state.get("dataset")
    policy.features = FeatureNames.from_dict(data.get("features") if isinstance(data, Mapping) else None)
    return policy
