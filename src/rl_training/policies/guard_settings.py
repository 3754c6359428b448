"""How a guard is fitted, and what it does about what it flags."""

from __future__ import annotations

from typing import ClassVar, Literal

from rl_training.config import ConfigModel, setting
from rl_training.config.limits import MAX_ROWS
from rl_training.policies.guarding import Fallback


class GuardConfig(ConfigModel):
    """Settings of a guard; `fallback` and its numbers are in the action's units."""

    section: ClassVar[str] = "guard"

    centres: int = setting(256, "centres that stand for the data", ge=1, le=256)
    percentile: float = setting(99.0, "percentage of held-out rows that stays below the limit", gt=0, le=100)
    held_out_share: float = setting(0.2, "share of episodes that the limit is taken from", gt=0, lt=1)
    max_rows: int = setting(50_000, "rows that the centres are fitted to at most", ge=2, most=MAX_ROWS)
    actions: bool = setting(False, "also ask whether the action is one that was logged there")
    seed: int = setting(0, "seed of the split, of the rows and of the centres", ge=0)
    fallback: Literal["none", "hold", "action", "rate"] = setting(
        "none", "what is played when flagged: the policy's own, the last, a given action, or a limited change"
    )
    fallback_action: tuple[float, ...] | None = setting(None, "the action of fallback action")
    fallback_rate: tuple[float, ...] | None = setting(None, "largest change per step of fallback rate")

    @property
    def chosen_fallback(self) -> Fallback:
        return Fallback(self.fallback, self.fallback_action, self.fallback_rate)
