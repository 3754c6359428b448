"""Signals in torch: the same steps as in numpy, to be differentiated in rollouts and traced for files."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import reduce

import numpy as np
import torch
from torch import Tensor

from rl_training.core.signals import OneStep, Program, StepOperations
from rl_training.core.spaces import Spaces
from rl_training.policies.inputs import RateLimit


def _compared(compare: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor, Tensor], Tensor]:
    """1 or 0 in the precision of what is compared."""
    return lambda x, y: compare(x, y).to(torch.promote_types(x.dtype, y.dtype))


def _is_true(x: Tensor) -> Tensor:
    return (x != 0.0).to(x.dtype)


def _clamped(x: Tensor, low: float, high: float) -> Tensor:
    """Without the bounds that are infinite: files hold none."""
    bounds = [None if math.isinf(bound) else bound for bound in (low, high)]
    return x if bounds == [None, None] else x.clamp(*bounds)


ARITHMETIC: dict[str, Callable[..., Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "power": torch.pow,
    "modulo": lambda x, y: x - torch.floor(x / y) * y,
    "negative": torch.neg,
    "less": _compared(torch.lt),
    "less_equal": _compared(torch.le),
    "greater": _compared(torch.gt),
    "greater_equal": _compared(torch.ge),
    "equal": _compared(torch.eq),
    "not_equal": _compared(torch.ne),
    "and": lambda x, y: _is_true(x) * _is_true(y),
    "or": lambda x, y: torch.maximum(_is_true(x), _is_true(y)),
    "not": lambda x: (x == 0.0).to(x.dtype),
    "abs": torch.abs,
    "sqrt": torch.sqrt,
    "exp": torch.exp,
    "log": torch.log,
    "sin": torch.sin,
    "cos": torch.cos,
    "min": lambda *values: reduce(torch.minimum, values),
    "max": lambda *values: reduce(torch.maximum, values),
    "clip": lambda x, low, high: torch.minimum(torch.maximum(x, low), high),
    "where": lambda condition, x, y: torch.where(condition != 0.0, x, y),
}
"""The functions of `core/expressions.py`."""


class TorchSignals:
    """The step of a program on tensors of one precision; a constant is made once."""

    def __init__(self, program: Program, dtype: torch.dtype = torch.float64) -> None:
        self.program, self.dtype = program, dtype
        self._numbers: dict[tuple[float, torch.device], Tensor] = {}
        self._places: dict[tuple[tuple[int, ...], torch.device], Tensor] = {}

    def step(self, obs: Tensor, last_action: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Signals `[n, width]` and the state afterwards, `[n, state_size]`; `first` `[n, 1]` holds flags."""
        seen, done, past = obs.to(self.dtype), last_action.to(self.dtype), state.to(self.dtype)
        one = OneStep(self.program, self._operations(obs.device), seen, done, past, first)
        return one.signals(), one.state_after() if self.program.layout.size else state

    def _operations(self, device: torch.device) -> StepOperations[Tensor]:
        def number(value: float) -> Tensor:
            if (value, device) not in self._numbers:
                self._numbers[value, device] = torch.tensor([[value]], dtype=self.dtype, device=device)
            return self._numbers[value, device]

        def take(table: Tensor, columns: Sequence[int]) -> Tensor:
            key = (tuple(columns), device)
            if key not in self._places:
                self._places[key] = torch.tensor(key[0], dtype=torch.int64, device=device)
            return table.index_select(-1, self._places[key])

        return StepOperations(
            arithmetic=ARITHMETIC,
            number=number,
            where=torch.where,
            join=lambda tables: torch.cat(list(tables), dim=-1),
            take=take,
            clip=_clamped,
        )


class TorchRateLimit:
    """`RateLimit` on tensors, out of the signals that a policy is asked with."""

    FREE = 1e30
    """Stands for no limit: files hold no infinity."""

    def __init__(self, limit: RateLimit, spaces: Spaces, device: torch.device) -> None:
        size = spaces.action_columns
        places, rates = np.zeros(size, dtype=np.int64), np.full(size, self.FREE)
        places[list(limit.columns)], rates[list(limit.columns)] = limit.signals, limit.rates
        self.places = torch.from_numpy(places).to(device)
        self.rates = torch.from_numpy(rates).to(device)

    def limited(self, actions: Tensor, asked: Tensor, low: Tensor, high: Tensor) -> Tensor:
        """Actions `[…, action_columns]` in their units, as they may run."""
        last = asked.index_select(-1, self.places).float()
        last = torch.minimum(torch.maximum(last, low), high).double()
        least, most = (last - self.rates).float(), (last + self.rates).float()
        return torch.minimum(torch.maximum(actions, least), most)
