"""What a run learns from: environments that are stepped, or transitions that were logged."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from rl_training.algorithms.learner import Learner
from rl_training.core.errors import ConfigError
from rl_training.core.plain import Facts, State
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import Transform
from rl_training.data.data_info import ReferenceReturns
from rl_training.runtime.loop import Phase
from rl_training.runtime.run import Evaluator


class RunSource(Protocol):
    """Spaces and units first, so that a learner can be built; then the phases."""

    spaces: Spaces
    observation_steps: Sequence[Transform]
    reference: ReferenceReturns | None
    rows: int | None
    summary: Facts
    evaluators: Sequence[Evaluator]
    """what is measured on rows that were held out of training"""

    def phases(self, learner: Learner, state: State | None) -> list[Phase]: ...


def check_env_fits(env: str, found: Spaces, known: Spaces, what: str) -> None:
    """Collecting goes on in the sizes and bounds that were learned in, or not at all."""
    for name in ("obs_dim", "action_dim", "action_low", "action_high"):
        has, wanted = getattr(found, name), getattr(known, name)
        if has != wanted:
            raise ConfigError(
                f"env_id must fit {what}: {name} of {env!r} is {shown(has)}, {what} has {shown(wanted)}; "
                "name the environment that it belongs to, or wrap this one"
            )


def shown(value: int | tuple[float, ...]) -> object:
    return list(value) if isinstance(value, tuple) else value
