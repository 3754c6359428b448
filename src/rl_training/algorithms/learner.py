"""The base of every algorithm: it sees batches and returns metrics; no environment, file or budget."""

from __future__ import annotations

import copy
import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal, TypeVar, cast

import torch
from torch import Tensor, nn

from rl_training.algorithms.graphs import CompiledStep, Step, fix_addresses
from rl_training.algorithms.optim import Adam, polyak
from rl_training.config import ConfigModel, setting
from rl_training.core.errors import ConfigError
from rl_training.core.products import LIBRARIES, Library, Shape, computed_by, fastest, is_safe
from rl_training.core.spaces import ActionKind
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.core.types import STANDARD_FIELDS, Facts, State
from rl_training.models.actors import Actor
from rl_training.models.critics import QEnsemble
from rl_training.models.models import PolicyModel
from rl_training.policies.inputs import Inputs
from rl_training.policies.policy import Policy

NoiseKind = Literal["normal", "uniform"]
NoiseShapes = Mapping[str, tuple[NoiseKind, tuple[int, ...]]]


def draw_flat(streams: Mapping[str, RandomStream], shapes: NoiseShapes) -> dict[str, Tensor]:
    """The random numbers of one update, `[*S, count]` of each kind that it takes."""
    counts = dict.fromkeys(streams, 0)
    for kind, shape in shapes.values():
        counts[kind] += math.prod(shape)
    return {kind: streams[kind].next(count) for kind, count in counts.items() if count}


def noise_streams(seed: int, name: str, device: torch.device) -> dict[str, RandomStream]:
    """One stream for each kind of number."""
    kinds: tuple[NoiseKind, ...] = ("normal", "uniform")
    return {kind: RandomStream([torch_generator(seed, name, kind, device=device)], kind) for kind in kinds}


def unpack_noise(flat: Mapping[str, Tensor], shapes: NoiseShapes) -> dict[str, Tensor]:
    """`[*S, count]` numbers of each kind -> the named tensors `[*S, *shape]` of one update."""
    noise: dict[str, Tensor] = {}
    used = dict.fromkeys(flat, 0)
    for name, (kind, shape) in shapes.items():
        size = math.prod(shape)
        noise[name] = flat[kind][..., used[kind] : used[kind] + size].reshape(*flat[kind].shape[:-1], *shape)
        used[kind] += size
    return noise


class Metrics(Mapping[str, float]):
    """Name -> float, converted when read, so that an update never waits for the device.

    A list with one float per seed when learners are stacked.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.tensors = dict(tensors)

    def __getitem__(self, name: str) -> float:
        return cast(float, self.tensors[name].tolist())

    def __iter__(self) -> Iterator[str]:
        return iter(self.tensors)

    def __len__(self) -> int:
        return len(self.tensors)

    def __repr__(self) -> str:
        return f"Metrics({dict(self)})"


@dataclass(frozen=True)
class UpdateResult:
    """One call of `update`: how many gradient steps it made, and its metrics."""

    num_gradient_steps: int
    metrics: Metrics


Batch = Mapping[str, Tensor]
Noise = Mapping[str, Tensor]
MetricTensors = dict[str, Tensor]
Group = Literal["actor", "critic"]
Module = TypeVar("Module", bound=nn.Module)
Part = TypeVar("Part", bound=nn.Module)


class LearnerConfig(ConfigModel):
    """Keywords shared by all learners."""

    learning_rate: float = setting(3e-4, "Adam step size of every network", gt=0)
    actor_learning_rate: float | None = setting(
        None, "step size of the actor (and temperature); none: learning_rate", gt=0
    )
    critic_learning_rate: float | None = setting(
        None, "step size of critics and value networks; none: learning_rate", gt=0
    )
    gamma: float = setting(0.99, "discount of future rewards", ge=0, le=1)
    precision: Literal["single", "bf16"] = setting(
        "single",
        "matrix products of updates: in single precision, or of factors rounded to bf16, which processors "
        "with instructions for it compute faster; weights, sums and losses stay single",
    )

    def rate_of(self, group: Group) -> float:
        own = self.actor_learning_rate if group == "actor" else self.critic_learning_rate
        return self.learning_rate if own is None else own


class Learner(ABC):
    """Trains a model in place. Subclasses say what they own in `setup` and how one update goes in `step`.

    `step` is written once and runs eagerly or as one compiled graph: randomness comes in as tensors, nothing
    is read back to the host, and what differs between updates (delays, warm starts) is a `stage`, one graph
    each.
    """

    config_class: ClassVar[type[LearnerConfig]] = LearnerConfig
    config: LearnerConfig
    """A subclass names its own class of settings in both."""
    needs: ClassVar[frozenset[str]] = frozenset()
    """Batch fields beyond the five standard ones."""
    uses_rewards: ClassVar[bool] = True
    """False for a learner that can train on logs without rewards."""
    takes_actions: ClassVar[tuple[ActionKind, ...]] = ("numbers",)
    """What actions may be made of."""
    pays_penalties: ClassVar[bool] = False
    """Whether what `penalty` takes off rewards comes apart from them, as the batch field `penalties`."""
    follows_signals: ClassVar[bool] = False
    """Whether it imagines columns, and signals of them: its batches then hold `signal_states`."""
    looks_at_data: ClassVar[bool] = False
    """Whether it takes units or ranges from all rows (`look_at_data`)."""
    delayed_metrics: ClassVar[tuple[str, ...]] = ()
    """Metrics that not every stage has: zero before the first that does, then repeated."""
    model_sizes: ClassVar[tuple[str, ...]] = ()
    """Sizes of the model that may be given to the learner too, and must then be the same."""

    def __init__(self, model: PolicyModel, *, seed: int = 0, **keywords: object) -> None:
        self.model = model
        if (kind := model.spaces.kind) not in self.takes_actions:
            raise ConfigError(
                f"{type(self).__name__} takes actions of {', '.join(self.takes_actions)}, "
                f"those of the model's spaces are {kind}"
            )
        for name in self.model_sizes:
            built = getattr(model.config, name)
            given = keywords.pop(name, built)
            if given not in (None, built):
                raise ConfigError(f"{name} must equal the model's ({built}), got {given}")
        self.config = self.config_class.build(keywords)
        self.device = next(model.parameters()).device
        self.optimizers: dict[str, Adam] = {}
        self.groups: dict[str, Group] = {}
        self.targets: dict[str, nn.Module] = {}
        self.scalars: dict[str, Tensor] = {}
        """Tensors beside the networks, learned or fixed, that are saved and have one copy per seed."""
        self.updates = 0
        self.online = False
        """Whether the run has gone from logged data to an environment (`go_online`)."""
        self.resting = False
        """Whether losses are only looked at (`held_out.losses_on`)."""
        self.products: Library | None = None
        """What computes the matrix products on a processor; none until the first update chooses."""
        self.streams = noise_streams(seed, "noise", self.device)
        self.last_metrics = {name: torch.zeros((), device=self.device) for name in self.delayed_metrics}
        self._checked_shapes: tuple[object, ...] = ()
        self._steps: dict[tuple[object, ...], Step] = {}
        self.compiler: str | None = None
        self.setup()
        self._refuse_unsaved()

    # ---- what an algorithm writes

    @abstractmethod
    def setup(self) -> None:
        """Create optimisers (`add_optimizer`), targets (`add_target`) and learned `scalars`."""

    @abstractmethod
    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        """The random numbers of one update: name -> (kind, shape without seed axes)."""

    @abstractmethod
    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        """One update; returns detached metrics `[*S]`."""

    def look_at_data(self, rows: Mapping[str, Tensor]) -> None:  # noqa: B027  # most have no use for it
        """Hear, before the first update, of the rows that batches are drawn from (where `looks_at_data`)."""

    def stage(self) -> str:
        """Which variant of `step` is due, from the learner's own count of updates; `full` is all of it."""
        return "full"

    def go_online(self, progress: float) -> None:
        """Hear, in every step of the online phase after offline training, how much of it is done (0 to 1).

        Updates may differ from here on; nothing of it is saved, as the run says it again when it is resumed.
        """
        if not self.online:
            self.online = True
            self._steps.clear()

    def online_needs(self) -> frozenset[str]:
        """Batch fields beyond the five standard ones that updates of the online phase take."""
        return self.needs

    def acting(self) -> Actor:
        """The actor that acts, live: the model's, unless an algorithm acts with another one."""
        return self.model.actor

    def inputs(self) -> Inputs:
        """Numbers that are chosen while its policy runs, such as a dial: the actor's inputs behind the
        observation."""
        return ()

    @cached_property
    def policy(self) -> Policy:
        """What acts, live, in the units that `Policy.set_units` tells it; made when first asked for."""
        return Policy(self.acting(), self.model.spaces, inputs=self.inputs())

    # ---- what they build on

    def part(self, name: str, kind: type[Part]) -> Part:
        """A network of the model, of the kind that this algorithm needs."""
        found = getattr(self.model, name, None)
        if not isinstance(found, kind):
            have = "none" if found is None else type(found).__name__
            raise ConfigError(
                f"model must have a {kind.__name__} as its {name} for {type(self).__name__}, "
                f"{type(self.model).__name__} has {have}"
            )
        return found

    def add_optimizer(
        self,
        name: str,
        parameters: Iterable[Tensor],
        group: Group,
        weight_decay: float = 0.0,
        learning_rate: float | None = None,
    ) -> None:
        """Give `parameters` to an optimiser; `group` decides its schedule, and its rate if none is given."""
        rate = self.config.rate_of(group) if learning_rate is None else learning_rate
        self.optimizers[name] = Adam(parameters, rate, weight_decay=weight_decay)
        self.groups[name] = group

    def add_target(self, name: str, source: Module) -> Module:
        """A copy of `source` that only `update_target` moves."""
        target = copy.deepcopy(source).requires_grad_(False)
        self.targets[name] = target
        return target

    def add_critic(self) -> tuple[QEnsemble, QEnsemble]:
        """The model's critics, with an optimiser, and a target copy of them."""
        critic = self.part("critic", QEnsemble)
        self.add_optimizer("critic", critic.parameters(), "critic")
        return critic, self.add_target("critic", critic)

    def update_target(self, name: str, source: nn.Module, tau: float) -> None:
        """Polyak step of the target called `name`."""
        if self.resting:
            return
        polyak(list(self.targets[name].parameters()), list(source.parameters()), tau)

    def gradients(self, name: str, loss: Tensor) -> tuple[Tensor, ...]:
        """Gradients of `loss` for the parameters of one optimiser and no others (seeds do not mix)."""
        return torch.autograd.grad(loss.sum(), self.optimizers[name].parameters)

    def minimize(self, name: str, loss: Tensor) -> None:
        """One step of the optimiser called `name`."""
        self.optimizers[name].apply(self.gradients(name, loss))

    def discount(self, batch: Batch) -> float | Tensor:
        """gamma, or gamma^n per row where the data holds n-step returns."""
        return batch.get("discounts", self.config.gamma)

    # ---- the update

    def update(self, batch: Batch, *, global_step: int) -> UpdateResult:
        """One gradient update on a batch of `[*S, B, …]` tensors."""
        self._check(batch)
        shapes, stage = self.noise_shapes(batch["obs"].shape[-2]), self.stage()
        flat = draw_flat(self.streams, shapes)
        key = (stage, self._checked_shapes, torch.get_num_threads())
        is_new = key not in self._steps
        if is_new:
            self._steps[key] = self.build_step(stage, shapes)
        with self.own_products(batch["obs"].shape[-2]):
            metrics = self._steps[key](dict(batch), flat)
        if is_new:
            self._check_metrics(metrics, batch["obs"].shape[:-2])
        if self.device.type == "cuda" and self.compiled:
            # The outputs of a captured graph are overwritten by its next replay.
            metrics = {name: value.clone() for name, value in metrics.items()}
        self.last_metrics.update(metrics)
        self.updates += 1
        return UpdateResult(1, Metrics(self.last_metrics))

    def own_products(self, rows: int) -> AbstractContextManager[None]:
        """For computations with the networks: matrix products by the library that is settled for them."""
        if self.device.type != "cpu":
            return nullcontext()
        if self.products is None:
            self.products = fastest(self.largest_product(rows))
        return computed_by(self.products)

    def largest_product(self, rows: int) -> Shape:
        """The product of a layer on so many rows that takes most of an update's time."""
        weights = [each for each in self.model.parameters() if each.dim() > 1]
        shapes = [Shape(math.prod(each.shape[:-2]), rows, *each.shape[-2:]) for each in weights]
        return max(shapes, key=lambda shape: shape.multiplications, default=Shape(0, 0, 0, 0))

    def compile(self, backend: str = "inductor") -> None:
        """Run every later update as one compiled graph per stage."""
        if self.device.type == "cuda":
            scalars = [each for o in self.optimizers.values() for each in (o.learning_rate, o.step_count)]
            fix_addresses([*self.tensors().values(), *scalars])
        self.compiler = backend
        self._steps.clear()

    @property
    def compiled(self) -> bool:
        return self.compiler is not None

    def build_step(self, stage: str, shapes: NoiseShapes) -> Step:
        """What runs the updates of a stage: as it is, or as one graph."""
        plain = self.plain_step(stage, shapes)
        return plain if self.compiler is None else CompiledStep(plain, self.compiler, self.device)

    def plain_step(self, stage: str, shapes: NoiseShapes) -> Step:
        """The same, as it is."""
        rounds = self.config.precision == "bf16"

        def run(batch: dict[str, Tensor], flat: dict[str, Tensor]) -> MetricTensors:
            # Nothing is cached: a rounded copy of a weight is old as soon as the optimiser has moved it.
            kind = self.device.type
            with torch.autocast(kind, torch.bfloat16, cache_enabled=False) if rounds else nullcontext():
                return self.step(batch, unpack_noise(flat, shapes), stage)

        return run

    def _check(self, batch: Batch) -> None:
        """Fields and shapes, once per new combination of shapes."""
        shapes = tuple((name, value.shape, value.stride(), value.dtype) for name, value in batch.items())
        if shapes == self._checked_shapes:
            return
        needs = self.online_needs() if self.online else self.needs
        missing = ({*STANDARD_FIELDS} | needs) - batch.keys()
        if missing:
            raise ConfigError(f"{type(self).__name__} needs the batch field(s) {sorted(missing)}")
        rows = batch["obs"].shape[:-1]
        for name, value in batch.items():
            vector = name in ("obs", "next_obs", "actions", "next_actions", "signal_states")
            if name in needs - {"returns_to_go", "discounts"}:  # a field of a plug-in may be either
                vector = vector or value.ndim > len(rows)
            if (value.shape[:-1] if vector else value.shape) != rows:
                raise ConfigError(
                    f"batch field {name} has shape {tuple(value.shape)}, expected {tuple(rows)} rows"
                )
        self._checked_shapes = shapes

    def _check_metrics(self, metrics: MetricTensors, seeds: torch.Size) -> None:
        for name, value in metrics.items():
            if value.shape != seeds:
                raise ConfigError(
                    f"{type(self).__name__}: the metric {name} must be one number per seed, of shape "
                    f"{tuple(seeds)}, got shape {tuple(value.shape)}; reduce only the last axes in step"
                )

    def _refuse_unsaved(self) -> None:
        """What an optimiser moves must be in the state: else it is lost on resume, and shared by seeds."""
        saved = {id(tensor) for tensor in self.tensors().values()}
        names: dict[int, str] = {}
        for attribute, value in vars(self).items():
            if isinstance(value, nn.Module):
                names |= {id(tensor): f"{attribute}.{name}" for name, tensor in value.named_parameters()}
            elif isinstance(value, Tensor):
                names[id(value)] = attribute
            elif isinstance(value, Adam | torch.optim.Optimizer):
                raise ConfigError(
                    f"{type(self).__name__}: the optimiser self.{attribute} is not in the learner's state "
                    "and would start anew on resume; make it in setup with "
                    f"self.add_optimizer({attribute!r}, …)"
                )
        for name, optimizer in self.optimizers.items():
            for index, tensor in enumerate(optimizer.parameters):
                if id(tensor) not in saved:
                    own = names.get(id(tensor))
                    raise ConfigError(
                        f"{type(self).__name__}: the optimiser {name!r} moves "
                        f"{f'its tensor {index}' if own is None else f'self.{own}'} of shape "
                        f"{tuple(tensor.shape)}, which is not in the learner's state and would be lost on "
                        f"resume; put it into self.scalars[{own or name!r}] in setup, or into the model"
                    )

    def set_learning_rate_scale(self, scale: float, group: Group | Literal["all"] = "all") -> None:
        """Multiply the base rate of the optimisers of one group."""
        for name, optimizer in self.optimizers.items():
            if group in ("all", self.groups[name]):
                optimizer.set_scale(scale)

    # ---- state

    def tensors(self) -> dict[str, Tensor]:
        """Every tensor that has one copy per seed."""
        named: dict[str, Tensor] = {}
        for part, module in {"model": self.model, **prefixed("target", self.targets)}.items():
            named |= prefixed(part, module.state_dict(keep_vars=True))
        named |= prefixed("scalar", self.scalars)
        for name, optimizer in self.optimizers.items():
            for index, (first, second) in enumerate(
                zip(optimizer.first_moments, optimizer.second_moments, strict=True)
            ):
                named[f"optimizer.{name}.first.{index}"] = first
                named[f"optimizer.{name}.second.{index}"] = second
        return named

    def state_dict(self) -> State:
        """Everything that the next update depends on."""
        return {
            "tensors": {name: tensor.detach().clone() for name, tensor in self.tensors().items()},
            "optimizer_steps": {name: o.step_count.clone() for name, o in self.optimizers.items()},
            "learning_rates": {name: o.learning_rate.clone() for name, o in self.optimizers.items()},
            "streams": {kind: stream.state_dict() for kind, stream in self.streams.items()},
            "metrics": {name: value.clone() for name, value in self.last_metrics.items()},
            "updates": self.updates,
            "products": self.products,
        }

    @torch.no_grad()
    def load_state_dict(self, state: Facts) -> None:
        saved = state["tensors"]
        for name, tensor in self.tensors().items():
            if name not in saved or saved[name].shape != tensor.shape:
                found = tuple(saved[name].shape) if name in saved else "nothing"
                raise ConfigError(
                    f"learner state: {name} must have shape {tuple(tensor.shape)}, found {found}"
                )
            tensor.copy_(saved[name])
        for name, optimizer in self.optimizers.items():
            optimizer.step_count.copy_(state["optimizer_steps"][name])
            optimizer.learning_rate.copy_(state["learning_rates"][name])
        for kind, stream in self.streams.items():
            stream.load_state_dict(state["streams"][kind])
        self.last_metrics = {name: value.to(self.device) for name, value in state["metrics"].items()}
        self.updates = int(state["updates"])
        products = state.get("products", "mkl")  # before there was a choice
        if products in LIBRARIES:
            self.products = products if is_safe(products) else "mkl"

    def is_finite(self) -> bool:
        """Whether every weight is a number (asked before a checkpoint is written)."""
        totals = torch.stack([tensor.detach().sum() for tensor in self.tensors().values()])
        return bool(totals.isfinite().all())


def prefixed(prefix: str, values: Facts) -> State:
    return {f"{prefix}.{name}": value for name, value in values.items()}


def losses_on(learner: Learner, batch: Batch) -> MetricTensors:
    """Every `…_loss` of a whole update on `[B, …]` tensors; nothing of the learner moves.

    The random numbers are the same in every call, so that two measurements differ by the networks alone.
    """
    with at_rest(learner), learner.own_products(batch["obs"].shape[-2]):
        shapes = learner.noise_shapes(batch["obs"].shape[-2])
        flat = draw_flat(noise_streams(0, "held out", learner.device), shapes)
        metrics = learner.step(batch, unpack_noise(flat, shapes), "full")
    return {name: value for name, value in metrics.items() if name.endswith("_loss")}


def action_error(learner: Learner, batch: Batch) -> torch.Tensor:
    """Mean squared distance of the deterministic actions from the logged ones, in [-1, 1] units."""
    with torch.no_grad(), learner.own_products(batch["obs"].shape[-2]):
        actions = learner.model.actor.mode(learner.policy.joined(batch["obs"]))
    return (actions.clamp(-1.0, 1.0) - batch["actions"]).square().mean()


@contextmanager
def at_rest(learner: Learner) -> Iterator[None]:
    """Updates are computed, and nothing moves."""
    everything: list[Learner | Adam] = [learner, *learner.optimizers.values()]
    for each in everything:
        each.resting = True
    try:
        yield
    finally:
        for each in everything:
            each.resting = False
