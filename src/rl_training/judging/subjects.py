"""A policy under judgement, whatever it is: anything that predicts, and what else it happens to offer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.core.errors import DataError, UserError
from rl_training.core.spaces import Spaces
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog
from rl_training.models.distributions import gaussian_log_prob, squashed_log_prob
from rl_training.policies.policy import Policy

_CHUNK = 16_384
OUTSIDE_TOLERANCE = 0.01
"""Share of logged actions that may lie outside the policy's bounds (by more than this share of the range)."""


class Predicts(Protocol):
    """All that a judgement asks of a policy: deterministic actions in the user's units."""

    def predict(self, obs: Any, /) -> Any: ...


@runtime_checkable
class Distributed(Protocol):
    """A policy that can say how its draws are distributed: mean and log std in [-1, 1] units."""

    spaces: Spaces

    @property
    def has_distribution(self) -> bool: ...

    def distribution(self, obs: Any, /) -> tuple[Any, Any]: ...


@dataclass(frozen=True)
class Subject:
    """One policy by name, asked for actions in pieces and checked on the way."""

    name: str
    policy: Predicts
    action_dim: int

    def actions(self, obs: FloatArray) -> FloatArray:
        """`[n, obs_dim]` -> `[n, action_dim]`, in the user's units."""
        parts = []
        for start in range(0, len(obs), _CHUNK):
            rows = obs[start : start + _CHUNK]
            found = np.asarray(self.policy.predict(rows), dtype=np.float32)
            if found.shape != (len(rows), self.action_dim):
                raise UserError(
                    f"policy {self.name}: predict must give shape {(len(rows), self.action_dim)} for "
                    f"{len(rows)} observations of this log, got {found.shape}"
                )
            if not np.isfinite(found).all():
                raise UserError(f"policy {self.name}: predict gave NaN or infinity for logged observations")
            parts.append(found)
        return np.concatenate(parts)

    def log_density(self, obs: FloatArray, unit_actions: FloatArray) -> Float64Array | None:
        """log pi(a|s) in [-1, 1] units, or None where the policy has no density."""
        if not self.can_draw:
            return None
        density = squashed_log_prob if head_of(self.policy) == "squashed" else gaussian_log_prob
        parts = []
        for rows, mean, log_std in self._distributions(obs):
            parts.append(density(torch.from_numpy(unit_actions[rows]).double(), mean, log_std).numpy())
        return np.concatenate(parts)

    @property
    def can_draw(self) -> bool:
        return head_of(self.policy) is not None

    def drawn(self, obs: FloatArray, noise: Tensor) -> FloatArray:
        """Random actions from N(0, 1) noise `[n, draws, action_dim]`, of its shape, in the user's units."""
        policy, squashed = self.policy, head_of(self.policy) == "squashed"
        assert isinstance(policy, Distributed)
        parts = []
        for rows, mean, log_std in self._distributions(obs):
            unbounded = mean.unsqueeze(-2) + log_std.exp().unsqueeze(-2) * noise[rows]
            unit = unbounded.tanh() if squashed else unbounded.clamp(-1.0, 1.0)
            parts.append(policy.spaces.to_env(unit.numpy()))
        return np.concatenate(parts)

    def _distributions(self, obs: FloatArray) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """Rows and the mean and log std of their actions, piece by piece, in double precision."""
        policy = self.policy
        assert isinstance(policy, Distributed)
        for start in range(0, len(obs), _CHUNK):
            rows = slice(start, start + _CHUNK)
            given = torch.from_numpy(obs[rows]) if isinstance(policy, Policy) else obs[rows]
            mean, log_std = (
                torch.as_tensor(each).detach().cpu().double() for each in policy.distribution(given)
            )
            if not (mean.isfinite().all() and log_std.isfinite().all()):
                raise UserError(f"policy {self.name}: distribution gave NaN or infinity")
            yield rows, mean, log_std


def head_of(policy: Predicts) -> str | None:
    """How a draw is made from mean and log std, or None where nothing is drawn."""
    if not isinstance(policy, Distributed) or not policy.has_distribution:
        return None
    if isinstance(policy, Policy):
        return policy.actor.kind
    kind = getattr(policy, "metadata", {}).get("actor", {}).get("kind")
    return None if kind is None else str(kind)


def check_fits(subject: Subject, log: JudgedLog, source: str, data_spaces: Spaces | None) -> None:
    """A policy of other sizes or action units than the log's cannot be judged with it."""
    spaces = getattr(subject.policy, "spaces", None)
    if not isinstance(spaces, Spaces):
        return
    sizes = log.obs.shape[1], log.actions.shape[1]
    if (spaces.obs_dim, spaces.action_dim) != sizes:
        raise DataError(
            f"policy {subject.name} has {spaces.obs_dim} observations and {spaces.action_dim} actions, "
            f"{source} has {sizes[0]} and {sizes[1]}: judge it on data of its own kind"
        )
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    margin = OUTSIDE_TOLERANCE * (high - low)
    outside = ((log.actions < low - margin) | (log.actions > high + margin)).mean(axis=0)
    wrong = int(outside.argmax())
    units = data_spaces is not None and not (
        np.allclose(data_spaces.action_low, low) and np.allclose(data_spaces.action_high, high)
    )
    if outside[wrong] > OUTSIDE_TOLERANCE or units:
        raise DataError(
            f"policy {subject.name} acts within [{low[wrong]:g}, {high[wrong]:g}] for action {wrong}, but "
            f"{source} {_logged_range(log.actions[:, wrong], data_spaces, wrong)}: are the units the same?"
        )


def _logged_range(actions: npt.NDArray[np.float32], spaces: Spaces | None, index: int) -> str:
    if spaces is not None:
        return f"states the bounds [{spaces.action_low[index]:g}, {spaces.action_high[index]:g}]"
    return f"spans [{actions.min():g}, {actions.max():g}]"
