"""What a run learns from: environments that are stepped, or transitions that were logged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import torch

from rl_training.core.spaces import Spaces
from rl_training.core.transforms import Transform
from rl_training.data.data_info import ReferenceReturns
from rl_training.runtime.loop import Phase


class RunSource(Protocol):
    """Spaces and units first, so that a learner can be built; then the phases."""

    spaces: Spaces
    observation_steps: Sequence[Transform]
    reference: ReferenceReturns | None
    rows: int | None
    summary: Mapping[str, Any]

    def phases(self, device: torch.device, state: dict[str, Any] | None) -> list[Phase]: ...
