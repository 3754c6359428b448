"""A policy: raw observations in, actions in the environment's own units out."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from rl_training.core.errors import UserError
from rl_training.core.feature_names import FeatureNames
from rl_training.core.plain import Array
from rl_training.core.spaces import FloatArray, Spaces, inner_float32
from rl_training.core.streams import torch_generator
from rl_training.core.transforms import Transform
from rl_training.models.actors import Actor, GaussianActor
from rl_training.policies.guard import Guard
from rl_training.policies.guarding import NO_GUARD, Guarded, GuardedLoop, GuardFacts, guarded


class Policy(nn.Module):
    """Observation steps -> actor -> action units. Needs no environment, no learner, no file.

    A learner owns one that shares its actor and changes with it. `snapshot` gives one that stays as it is and
    computes in double precision, because single precision rounds large pre-activations visibly (by 6e-4 of an
    action at 1000 times the data's range), and differently in every library that runs the policy.
    """

    features: FeatureNames = FeatureNames()
    """names and units of its numbers, where the log that it was trained on has them"""
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
    ) -> None:
        super().__init__()
        self.actor, self.guard = actor, guard
        # In a tuple, so that it is not registered twice; looking it up each time costs as much as a layer.
        self._first_weight = (next(actor.parameters()),)
        self.set_units(spaces, observation_steps)

    def set_units(self, spaces: Spaces, observation_steps: Sequence[Transform] = ()) -> None:
        """The units that observations come in and actions leave in."""
        if (spaces.obs_dim, spaces.action_dim) != (self.actor.obs_dim, self.actor.action_dim):
            raise UserError(
                f"the policy's actor takes {self.actor.obs_dim} observations and gives "
                f"{self.actor.action_dim} actions, the spaces have {spaces.obs_dim} and {spaces.action_dim}"
            )
        self.spaces = spaces
        self.observation_steps = tuple(step.to(self.device, self.dtype) for step in observation_steps)
        low, high = np.array(spaces.action_low), np.array(spaces.action_high)
        numbers = {
            "action_half": (high - low) / 2.0,
            "action_middle": (high + low) / 2.0,
            "action_low": inner_float32(low, upward=True),
            "action_high": inner_float32(high, upward=False),
        }
        for name, values in numbers.items():
            self.register_buffer(name, torch.from_numpy(values).to(self.device), persistent=False)
        self._generator = torch_generator(0, "act", device=self.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Behind `to`, `double`, `cuda`: the observation steps go along."""
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.observation_steps = tuple(step.to(self.device, self.dtype) for step in self.observation_steps)
        return self

    @property
    def device(self) -> torch.device:
        return self._first_weight[0].device

    @property
    def dtype(self) -> torch.dtype:
        return self._first_weight[0].dtype

    # ---- in torch: what every export computes

    def forward(self, obs: Tensor) -> Tensor:
        """The deterministic actions, float32, inside the bounds: `[B, obs_dim]` -> `[B, action_dim]`."""
        return self.to_units(self.actor.mode(self.prepared(obs)))

    @property
    def has_distribution(self) -> bool:
        """Whether random actions come from one mean and log std."""
        return isinstance(self.actor, GaussianActor)

    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Mean and log std in [-1, 1] units; the actor's `draws` says how an action is made of them."""
        actor = self.actor
        if not isinstance(actor, GaussianActor):
            raise UserError(
                f"distribution must be off: this policy ({actor.kind}) has no single mean and log_std: "
                f"{actor.draws}"
            )
        mean, log_std = actor.distribution(self.prepared(obs))
        return mean.float(), (
            mean * 0.0 + log_std
        ).float()  # one row each, also where it is free of the state

    def novelty(self, obs: Tensor, actions: Tensor) -> Tensor:
        """How far from the data this is, `[B, 1]`; 1 is the guard's limit."""
        if self.guard is None:
            raise UserError(NO_GUARD)
        return self.guard(self.guard.points(obs, actions))  # type: ignore[no-any-return]  # a module's call

    def prepared(self, obs: Tensor) -> Tensor:
        """Observations as the actor takes them."""
        values = obs.to(self.dtype)
        for step in self.observation_steps:
            values = step.apply(values)
        return values

    def to_units(self, unit: Tensor) -> Tensor:
        """[-1, 1] -> the environment's units, clipped so that rounding never leaves the bounds."""
        actions = torch.addcmul(self.action_middle, unit, self.action_half).float()
        return actions.clamp(self.action_low, self.action_high)

    # ---- in arrays

    def act(self, obs: Array, deterministic: bool = True) -> FloatArray:
        """`[n, obs_dim]` observations -> `[n, action_dim]` actions inside the bounds."""
        with torch.inference_mode():
            actions: FloatArray = self.to_units(self._unit(obs, deterministic)).cpu().numpy()
        return actions

    def act_unit(self, obs: Array, deterministic: bool = True) -> FloatArray:
        """The same in [-1, 1], as learners see actions."""
        with torch.inference_mode():
            actions: FloatArray = self._unit(obs, deterministic).float().cpu().numpy()
        return actions

    def predict(self, obs: npt.ArrayLike, deterministic: bool = True) -> FloatArray:
        """Actions for one observation `(obs_dim,)` or a batch `(n, obs_dim)`, checked."""
        values = self.spaces.check_observations(obs)
        actions = self.act(np.atleast_2d(values), deterministic)
        return actions if values.ndim == 2 else actions[0]

    @property
    def guard_facts(self) -> GuardFacts | None:
        return None if self.guard is None else self.guard.facts

    def predict_guarded(self, obs: npt.ArrayLike) -> Guarded:
        """The deterministic actions, how new their observations are, and which are beyond the limit."""
        values = self.spaces.check_observations(obs)
        rows = torch.from_numpy(np.atleast_2d(values)).to(self.device)
        with torch.inference_mode():
            actions = self(rows)
            novelty = self.novelty(rows, actions)
        return guarded(actions.cpu().numpy(), novelty.cpu().numpy(), single=values.ndim == 1)

    def guarded(self) -> GuardedLoop:
        """The policy for one loop, with the guard's fallback."""
        return GuardedLoop(self)

    def _unit(self, obs: Array, deterministic: bool) -> Tensor:
        """Observations are single precision, as environments give them, whatever is computed in."""
        given = torch.from_numpy(np.asarray(obs, dtype=np.float32)).to(self.device)
        if deterministic:
            return self.actor.mode(self.prepared(given))
        shape = (len(given), self.actor.noise_size)
        noise = torch.randn(shape, generator=self._generator, device=self.device)
        return self.actor.draw(self.prepared(given), noise.to(self.dtype))

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
        return Policy(actor, self.spaces, self.observation_steps, guard)


def unit_spaces(obs_dim: int, action_dim: int) -> Spaces:
    """Spaces of a learner that nobody has told of an environment."""
    return Spaces(obs_dim, (-1.0,) * action_dim, (1.0,) * action_dim)
