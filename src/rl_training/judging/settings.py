"""Every setting of a judgement, with the limits at which it refuses to answer."""

from __future__ import annotations

from typing import ClassVar, Literal

from rl_training.config import ConfigModel, setting
from rl_training.core.schema import MAX_BATCH, MAX_CRITICS, MAX_LAYERS, MAX_SAMPLES, MAX_WIDTH
from rl_training.data.splits import FEWEST_EPISODES


class JudgeConfig(ConfigModel):
    """How a policy is judged from a log. The defaults were chosen on `benchmarks/judge/truth.py`."""

    section: ClassVar[str] = "judging"

    gamma: float = setting(0.99, "discount of future rewards", gt=0, le=1)
    discount_by_time: bool = setting(
        False, "discount by gamma to the power of a step's duration, in median steps; needs logged times"
    )
    seed: int = setting(0, "seed of resampling, initial weights and batches", ge=0)
    confidence: float = setting(0.9, "probability that an interval is made for", gt=0, lt=1)

    headline: Literal["fqe", "both"] = setting(
        "both", "the value that is told: fitted values, or these and the model's together, by their widths"
    )

    # `predict` of a shipped policy is deterministic, so that is what will run.
    action_draws: int = setting(
        0,
        "0: judge the policy's deterministic action; otherwise judge it as it draws its actions, with so "
        "many draws per state",
        ge=0,
        most=MAX_SAMPLES,
    )

    members: int = setting(
        5, "value networks per policy, each on its own resample of the episodes", ge=2, most=MAX_CRITICS
    )
    hidden_sizes: tuple[int, ...] = setting(
        (64, 64), "widths of the value networks' hidden layers", ge=1, most=MAX_WIDTH, longest=MAX_LAYERS
    )
    batch_size: int = setting(128, "rows per update", ge=1, most=MAX_BATCH)
    learning_rate: float = setting(1e-3, "step size of the value networks; falls to a twentieth", gt=0)
    tau: float = setting(0.05, "share of the networks that their targets take over per update", gt=0, le=1)
    updates: int | None = setting(
        None, "updates of the value networks; null: as many as convergence needs, at least 5000", ge=1
    )

    compile: Literal["auto"] | bool = setting(
        "auto", "torch.compile for the value networks; auto = where there are enough of them to gain"
    )

    model_rollouts: bool = setting(True, "ask a learned model of the dynamics for a second opinion")
    model_members: int = setting(5, "dynamics networks", ge=2, most=MAX_CRITICS)
    model_hidden_sizes: tuple[int, ...] = setting(
        (128, 128), "widths of their hidden layers", ge=1, most=MAX_WIDTH, longest=MAX_LAYERS
    )
    model_updates: int = setting(4000, "updates of the dynamics networks", ge=1)
    rollout_starts: int = setting(200, "logged first states from which the model is rolled out", ge=1)

    importance: bool = setting(True, "also weigh the logged rewards (importance sampling, doubly robust)")
    density_updates: int = setting(2000, "updates of the fitted density of the logged actions", ge=1)
    log_ratio_range: tuple[float, float] = setting(
        (-6.0, 2.0), "log pi - log mu of a single step is kept in this range"
    )
    kernel_bandwidth: float | None = setting(
        None,
        "std, in [-1, 1] units, of the kernel that stands in for the density of a deterministic policy; "
        "null: what the fitted density leaves unexplained",
        gt=0,
    )

    min_episodes: int = setting(FEWEST_EPISODES, "with fewer episodes nothing is judged", ge=2)
    falsification_error_limit: float = setting(
        0.5, "largest error of the behaviour's mean value, as a share of the spread of its returns", gt=0
    )
    falsification_correlation_limit: float = setting(
        0.5,
        "smallest correlation of its values with held-out returns, as a share of what right values would "
        "reach with that noise; of a cost, smallest share of what its values promise that may come",
        ge=-1,
        le=1,
    )
    disagreement_limit: float = setting(
        1.0,
        "largest difference of two methods whose intervals lie apart, as a share of the spread of returns",
        gt=0,
    )
    neighbours: int = setting(5, "a row is as far from the log as its k-th nearest logged row", ge=1)
    coverage_limit: float = setting(
        0.02,
        "largest share of the policy's actions in logged states further from the log than 99 % of its own "
        "rows; more is warned of, and refused where no model says what the policy reaches",
        ge=0,
        le=1,
    )
    rollout_coverage_limit: float = setting(
        0.5, "the same along the model's rollouts of the policy; more is refused", ge=0, le=1
    )
    drift_limit: float = setting(
        0.5,
        "largest change of the value in the last third of training, as a share of the spread of returns or "
        "of the difference to the behaviour, whichever is larger",
        gt=0,
    )
