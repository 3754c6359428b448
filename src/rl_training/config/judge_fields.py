"""How an offline run judges its policy by the log when it ends."""

from __future__ import annotations

from typing import ClassVar, Literal

from rl_training.config.fields import setting
from rl_training.config.limits import MAX_ROWS
from rl_training.config.model import ConfigModel


class SelfJudgingFields(ConfigModel):
    """What a run says of its own policy where nobody can try it out.

    Nothing here follows the run's own seed or discount: the candidates of a search are judged alike.
    """

    section: ClassVar[str] = "judging at the end"

    judge_at_end: Literal["auto"] | bool = setting(
        "auto",
        "estimate the trained policy's value from logged episodes (those of validation_share, where set); "
        "auto = without an environment, after at least as many updates as that takes itself",
    )
    judge_gamma: float = setting(
        0.99, "discount of that estimate, whatever the policy was trained with", gt=0, lt=1
    )
    judge_rows: int = setting(
        20_000,
        "logged rows that it takes at most, in whole episodes drawn with dataset_seed",
        ge=1,
        most=MAX_ROWS,
    )
    judge_updates: int | None = setting(
        None, "updates of its value networks; null = as many as judge_gamma needs (6,000 at 0.99)", ge=1
    )
