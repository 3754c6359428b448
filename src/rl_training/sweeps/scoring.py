"""What the candidates of a study are compared by: episodes that were played, or what a log says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from statistics import fmean

from rl_training.config.data_fields import OfflineFields
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.plain import Facts
from rl_training.core.train_config import TrainConfig
from rl_training.data.logged_episodes import FEWEST_EPISODES, logged_episodes
from rl_training.judging.judgement import Interval
from rl_training.judging.selection import half_width
from rl_training.runtime.offline_data import discounted_by_time, load_parts

AUTO, NONE = "auto", "none"
MEASURED, ESTIMATED = "eval_return_mean", "judge_score"
ALIKE = (
    *("judge_gamma", "judge_rows", "judge_updates", "validation_share"),
    *("dataset_kind", "dataset_path", "dataset_id", "dataset_seed", "dataset_size", "dataset_parts"),
    "columns",
)
"""Settings in which candidates must agree to be judged alike: the same episodes, the same procedure."""


def chosen_metric(metric: str, configs: Mapping[str, TrainConfig], *, may_be_none: bool) -> str | None:
    """The metric that decides; refused early, with the reason, where nothing can give it."""
    if metric == NONE and may_be_none:
        return None
    simulated = any(config.env_id is not None for config in configs.values())
    if metric == AUTO:
        metric = MEASURED if simulated else ESTIMATED
    way_out = "give env_id" + (f", or metric: {NONE} to train without a ranking" if may_be_none else "")
    if metric.startswith("eval_"):
        bare = next((name for name, config in configs.items() if config.env_id is None), None)
        if bare is not None:
            raise ConfigError(
                f"metric {metric} is measured in an environment, and {bare} has none: {way_out}, or choose "
                f"by estimated values with metric: {ESTIMATED}"
            )
    if is_estimated(metric):
        reason = why_not_judged(configs)
        if reason is not None:
            raise ConfigError(f"metric {metric}: the judge cannot score these runs: {reason}; {way_out}")
    return metric


def is_estimated(metric: str | None) -> bool:
    return metric is not None and metric.startswith("judge_")


def why_not_judged(configs: Mapping[str, TrainConfig]) -> str | None:
    """Looked at before the first run: settings first, then the data itself."""
    first: TrainConfig | None = None
    for name, config in configs.items():
        settings = config.run_config()
        if not isinstance(settings, OfflineFields):
            return f"{name} ({config.algo}) learns from an environment"
        if settings.judge_at_end is False or config.online_timesteps:
            return f"{name} has judge_at_end: false, or goes online"
        first = first or config
        other = next((each for each in ALIKE if _value(config, each) != _value(first, each)), None)
        if other is not None:
            return f"{other} differs between candidates, which are then not judged alike"
    return None if first is None else _problem_of_data(first)


def _value(config: TrainConfig, name: str) -> object:
    return getattr(config.run_config(), name)


def _problem_of_data(config: TrainConfig) -> str | None:
    settings = config.run_config()
    assert isinstance(settings, OfflineFields)
    try:
        logged = logged_episodes(load_parts(config), settings, discounted_by_time(settings))
        episodes = int(logged.dataset.episode_ends().sum())
    except UserError as problem:
        return str(problem)
    return None if episodes >= FEWEST_EPISODES else f"{episodes} episodes are fewer than {FEWEST_EPISODES}"


def judged(config: TrainConfig) -> TrainConfig:
    """The same run, judged however short it is."""
    return config.replace(algo_kwargs={**config.to_dict()["algo_kwargs"], "judge_at_end": True})


def estimate_of(metrics: Iterable[Facts]) -> Interval | None:
    """The value of one candidate over its seeds; none where the judge refused one of them."""
    found = list(metrics)
    if not found or any(each.get(ESTIMATED) is None for each in found):
        return None
    intervals = [
        Interval(float(each["judge_value"]), float(each["judge_low"]), float(each["judge_high"]))
        for each in found
    ]
    value, noise = fmean(each.value for each in intervals), fmean(map(half_width, intervals))
    return Interval(value, value - noise, value + noise)
