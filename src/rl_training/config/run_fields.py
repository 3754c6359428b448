"""Groups of settings that runs of many algorithms share; an algorithm's run config mixes them in."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

from pydantic import model_validator

from rl_training.config.fields import setting
from rl_training.config.limits import MAX_BATCH, MAX_ROWS, MAX_SAMPLES
from rl_training.config.model import ConfigModel


class EarlyStoppingConfig(ConfigModel):
    """Stop when evaluation no longer gets better, or once it is good enough."""

    section: ClassVar[str] = "early stopping"

    metric: str = setting("eval_return_mean", "evaluation metric that is watched")
    patience: int = setting(5, "evaluations without progress after which the run stops", ge=1)
    min_delta: float = setting(0.0, "smallest change that counts as progress", ge=0)
    mode: Literal["max", "min"] = setting("max", "whether more or less of the metric is better")
    target: float | None = setting(None, "stop at once when the metric reaches this value")


class ControlFields(ConfigModel):
    """How long a run trains and what happens along the way."""

    section: ClassVar[str] = "run control"

    batch_size: int = setting(256, "transitions per gradient update", ge=1, most=MAX_BATCH)
    eval_interval: int = setting(5000, "steps between evaluations; 0 evaluates only at the end", ge=0)
    max_updates: int | None = setting(None, "stop after this many gradient updates", ge=1)
    max_epochs: int | None = setting(None, "stop after this many passes over the data (offline only)", ge=1)
    early_stopping: EarlyStoppingConfig | None = setting(None, "rule that ends the run early; null = none")
    learning_rate_schedule: Literal["constant", "linear", "cosine"] = setting(
        "constant", "how the learning rates fall over schedule_steps: not at all, or to zero"
    )
    warmup_steps: int = setting(
        0, "steps, counted like total_timesteps, in which the learning rates rise from zero", ge=0
    )
    schedule_steps: int | None = setting(
        None,
        "steps, counted like total_timesteps, that the schedule spans; null = all of the first run",
        ge=1,
    )
    schedule_groups: Literal["all", "actor", "critic"] = setting(
        "all", "networks whose learning rate follows the schedule"
    )
    keep_checkpoints: int = setting(3, "newest checkpoints that are kept", ge=1)
    save_best: bool = setting(True, "also keep the checkpoint with the best evaluation")
    compile: Literal["auto"] | bool = setting(
        "auto", "torch.compile for the update; auto = where the run is long enough to gain"
    )
    eval_deterministic: bool = setting(True, "evaluate the policy's best action; false samples from it")
    eval_seed: int | None = setting(None, "seed of the evaluation episodes; null = derived from seed", ge=0)

    @model_validator(mode="after")
    def _warmup_fits(self) -> Self:
        if self.schedule_steps is not None and self.warmup_steps > self.schedule_steps:
            raise ValueError(
                f"warmup_steps must be <= schedule_steps ({self.schedule_steps}), got {self.warmup_steps}"
            )
        return self


class RewardFields(ConfigModel):
    """How rewards are changed before anything is learned from them, online and offline alike."""

    section: ClassVar[str] = "rewards"

    reward_scale: float = setting(1.0, "factor of every reward", gt=0)
    reward_shift: float = setting(0.0, "added to every scaled reward")
    reward_clip: float | tuple[float, float] | None = setting(
        None, "bounds of the transformed reward: c for [-c, c], or [low, high]"
    )

    @model_validator(mode="after")
    def _clip_is_a_range(self) -> Self:
        clip = self.reward_clip
        if isinstance(clip, tuple):
            if not clip[0] < clip[1]:
                raise ValueError(f"reward_clip must be [low, high] with low < high, got {clip}")
        elif clip is not None and clip <= 0:
            raise ValueError(f"reward_clip must be > 0 or [low, high], got {clip}")
        return self


class CollectionFields(ConfigModel):
    """How transitions are collected and how often is learned from them."""

    section: ClassVar[str] = "online collection"

    buffer_capacity: int = setting(
        1_000_000, "transitions the replay buffer holds; the oldest give way", ge=1, most=MAX_ROWS
    )
    train_frequency: int = setting(1, "steps of all environments between two rounds of updates", ge=1)
    gradient_updates_per_step: int = setting(1, "updates per collected transition", ge=1, most=MAX_SAMPLES)
    async_envs: bool = setting(False, "step each environment in its own process")


Share = float | tuple[float, float, int]
"""A share of a batch: a number, or [a, b, n], the line from a to b over n steps."""


class ShareFields(ConfigModel):
    """How much of a batch comes from logged data where a run also collects."""

    section: ClassVar[str] = "data and collection"

    offline_share: Share | None = setting(
        None,
        "share of each batch from the data while collecting: a number, or [a, b, n] for a line from a to b "
        "over n online steps; null = 0.5 where there is data",
        ge=0,
    )

    @model_validator(mode="after")
    def _shares_are_shares(self) -> Self:
        share = self.offline_share
        ends = share[:2] if isinstance(share, tuple) else () if share is None else (share,)
        if any(end > 1 for end in ends):
            raise ValueError(f"offline_share must be between 0 and 1, got {shown_share(share)}")
        if isinstance(share, tuple) and share[2] < 1:
            raise ValueError(f"offline_share must be [a, b, n] with n >= 1 steps, got {shown_share(share)}")
        return self


def shown_share(share: Share | None) -> object:
    """As YAML writes it."""
    return list(share) if isinstance(share, tuple) else share


class FineTuneFields(CollectionFields, ShareFields):
    """What happens in the online phase that follows offline training (`online_timesteps`)."""

    section: ClassVar[str] = "online phase"

    offline_data: Literal["mix", "append", "drop"] = setting(
        "mix",
        "the data in the online phase: mix takes offline_share of each batch from it, append draws from data "
        "and collected rows as one set, drop leaves it out",
    )
    warmup_steps_online: int = setting(
        0, "first online steps, in which the trained policy acts and nothing is updated", ge=0
    )
    batch_size_online: int | None = setting(
        None, "transitions per update in the online phase; null = batch_size", ge=1, most=MAX_BATCH
    )
    exploration_noise: float = setting(
        0.1,
        "standard deviation of the Gaussian noise, in units of [-1, 1], that a deterministic policy explores "
        "with; others draw their own actions",
        ge=0,
    )

    @model_validator(mode="after")
    def _share_is_used(self) -> Self:
        if self.offline_share is not None and self.offline_data != "mix":
            raise ValueError(
                f"offline_share must be null with offline_data {self.offline_data!r} (it belongs to mix), "
                f"got {shown_share(self.offline_share)}"
            )
        return self


class OnlineFields(ControlFields, RewardFields, CollectionFields):
    """How an online run collects transitions and how often it learns from them."""

    section: ClassVar[str] = "online collection"

    learning_starts: int = setting(
        1000,
        "transitions collected with random actions before the first update; enough that the first batches do "
        "not repeat a handful of rows",
        ge=0,
    )

    @model_validator(mode="after")
    def _no_epochs_online(self) -> Self:
        if self.max_epochs is not None:
            raise ValueError(
                f"max_epochs must be null online (no fixed data to pass over), got {self.max_epochs}; "
                "use max_updates"
            )
        return self
