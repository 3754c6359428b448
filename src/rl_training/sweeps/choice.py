"""What configurations are chosen by: a metric that all of them can give, and who comes first by it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from rl_training.config.data import OfflineFields
from rl_training.config.run import TrainConfig
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.types import Facts, number
from rl_training.data.splits import FEWEST_EPISODES, logged_episodes
from rl_training.judging.candidates import candidate_of, ranking, tell_broken, tell_refusals, ties
from rl_training.runtime.offline_data import discounted_by_time, load_parts
from rl_training.sweeps.plan import SweepRun

AUTO, NONE = "auto", "none"
MEASURED, ESTIMATED = "eval_return_mean", "judge_score"
ALIKE = (
    *("judge_gamma", "judge_rows", "judge_updates", "validation_share"),
    *("dataset_kind", "dataset_path", "dataset_id", "dataset_seed", "dataset_size", "dataset_parts"),
    *("columns", "costs", "limits"),
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
    offline: list[tuple[TrainConfig, OfflineFields]] = []
    for name, config in configs.items():
        settings = config.run_config()
        if not isinstance(settings, OfflineFields):
            return f"{name} ({config.algo}) learns from an environment"
        if settings.judge_at_end is False or config.online_timesteps:
            return f"{name} has judge_at_end: false, or goes online"
        offline.append((config, settings))
        other = next(
            (each for each in ALIKE if getattr(settings, each) != getattr(offline[0][1], each)), None
        )
        if other is not None:
            return f"{other} differs between candidates, which are then not judged alike"
    for config, settings in offline[:1]:
        try:
            logged = logged_episodes(load_parts(config), settings, discounted_by_time(settings))
            episodes = int(logged.dataset.episode_ends().sum())
        except UserError as problem:
            return str(problem)
        if episodes < FEWEST_EPISODES:
            return f"{episodes} episodes are fewer than {FEWEST_EPISODES}"
    return None


def judged(config: TrainConfig) -> TrainConfig:
    """The same run, judged however short it is."""
    return config.replace(algo_kwargs={**config.to_dict()["algo_kwargs"], "judge_at_end": True})


def told_ranking(runs: Sequence[SweepRun], metric: str, folder: Path) -> str:
    """Which configuration comes first by the metric, and which cannot be told apart from it."""
    by_name: dict[str, list[Facts]] = {}
    for run in runs:
        by_name.setdefault(run.run_dir.parent.name, []).append(run.status.metrics)
    return by_the_judge(by_name) if is_estimated(metric) else _by_the_mean(by_name, metric, folder)


def by_the_judge(runs: Mapping[str, Sequence[Facts]]) -> str:
    """Who comes first by the judge's score, who is level with it, and who cannot be taken."""
    found = {name: judged for name, each in runs.items() if (judged := candidate_of(each)) is not None}
    refused, broken = tell_refusals(found), tell_broken(found)
    leader = next(iter(ranking(found)), None)
    if leader is None or all(each.refused for each in found.values()):
        why = f"the judge refused {refused}" if refused else "no run was judged"
        return f"no ranking: {why}; judgement.json in each run says more"
    if all(each.out_of_question for each in found.values()):
        return f"none can be taken, limits are not kept: {broken}; judgement.json in each run says more"
    level = ties(found)
    tie = f"; a tie within noise with {', '.join(level)}" if level else ""
    rest = f"; refused by the judge: {refused}" if refused else ""
    rest += f"; not to be taken: {broken}" if broken else ""
    first = f"{leader} ({found[leader].told}, score {found[leader].score:.4g})"
    return f"by the judge's score, estimated, not measured: {first}{tie}{rest}"


def _by_the_mean(runs: Mapping[str, Sequence[Facts]], metric: str, folder: Path) -> str:
    means = {}
    for name, members in runs.items():
        values = [value for each in members if (value := number(each.get(metric))) is not None]
        if values:
            means[name] = fmean(values)
    if not means:
        return f"no ranking: no run has {metric}"
    leader = max(means, key=lambda name: means[name])
    sure = f"how sure that is, says: rl-training report {folder}"
    return f"highest mean {metric}: {leader} ({means[leader]:.4g}); {sure}"
