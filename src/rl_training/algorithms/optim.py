"""Adam on lists of tensors: one fused call in eager mode, plain arithmetic that fuses when compiled."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor

BETA1, BETA2, EPSILON = 0.9, 0.999, 1e-8


class Adam:
    """Adam (Kingma and Ba 2015). Rate and step are tensors: changing them never recompiles."""

    resting = False
    """Whether steps are left out, while losses are only looked at."""

    def __init__(
        self, parameters: Iterable[Tensor], learning_rate: float, *, weight_decay: float = 0.0
    ) -> None:
        self.parameters = list(parameters)
        device = self.parameters[0].device
        self.base_learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.learning_rate = torch.tensor(learning_rate, device=device)
        self.step_count = torch.zeros((), device=device)
        self.first_moments = [torch.zeros_like(p) for p in self.parameters]
        self.second_moments = [torch.zeros_like(p) for p in self.parameters]

    def set_scale(self, scale: float) -> None:
        """Learning rate = base rate times `scale` (schedules)."""
        self.learning_rate.fill_(self.base_learning_rate * scale)

    @torch.no_grad()
    def apply(self, gradients: Sequence[Tensor]) -> None:
        if self.resting:
            return
        self.step_count.add_(1.0)
        if torch.compiler.is_compiling():
            self._apply_plain(gradients)
        else:
            self._apply_fused(gradients)

    def _apply_fused(self, gradients: Sequence[Tensor]) -> None:
        # The fused kernel walks raw memory: every gradient must be laid out as its parameter.
        torch._fused_adam_(
            self.parameters,
            [gradient.contiguous() for gradient in gradients],
            self.first_moments,
            self.second_moments,
            [],
            [self.step_count] * len(self.parameters),
            lr=self.learning_rate,
            beta1=BETA1,
            beta2=BETA2,
            weight_decay=self.weight_decay,
            eps=EPSILON,
            amsgrad=False,
            maximize=False,
        )

    def _apply_plain(self, gradients: Sequence[Tensor]) -> None:
        # Powers as exponentials: what holds an `exp` and is used often is computed once, not inside the loop
        # over every parameter; in double precision, as 1 - beta^t cancels at the start.
        steps = self.step_count.double()
        step_size = (self.learning_rate / (1.0 - torch.exp(steps * math.log(BETA1)))).float()
        second_correction = (1.0 - torch.exp(steps * math.log(BETA2))).rsqrt().float()
        state = zip(self.parameters, gradients, self.first_moments, self.second_moments, strict=True)
        for parameter, gradient, first, second in state:
            if self.weight_decay:
                gradient = gradient + self.weight_decay * parameter
            first.lerp_(gradient, 1.0 - BETA1)
            second.mul_(BETA2).addcmul_(gradient, gradient, value=1.0 - BETA2)
            parameter.sub_(step_size * first / (second.sqrt() * second_correction + EPSILON))


@torch.no_grad()
def polyak(targets: Sequence[Tensor], sources: Sequence[Tensor], tau: float) -> None:
    """target <- target + tau (source - target)."""
    torch._foreach_lerp_(list(targets), list(sources), tau)
