"""Scores of a run and of its sister runs: the same config under other seeds, beside it on the disk."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from rl_training.config.yaml_text import read_yaml
from rl_training.core.plain import State
from rl_training.experiment.runs import CONFIG_FILE
from rl_training.experiment.summary_file import read_summary
from rl_training.policies.scores import SeedEstimate, SeedScore

NOT_COMPARED = ("seed", "seeds", "output_dir", "tags", "device", "log_interval", "checkpoint_interval")
"""Settings of a run in which its sisters may differ."""


def sister_scores(run_dir: Path) -> list[SeedScore | SeedEstimate]:
    """The evaluations of all runs beside `run_dir` that differ from it in their seed only, by seed."""
    own = _config(run_dir)
    if own is None:
        return []
    found: dict[int, SeedScore | SeedEstimate] = {}
    for other in sorted(run_dir.parent.iterdir()):
        if _config(other) == own and (score := _score(other)) is not None:
            found.setdefault(score.seed, score)
    return [found[seed] for seed in sorted(found)]


def _config(run_dir: Path) -> State | None:
    try:
        config = read_yaml(run_dir / CONFIG_FILE)
    except (OSError, ValueError):
        return None
    if not isinstance(config, Mapping):
        return None
    return {key: value for key, value in config.items() if key not in NOT_COMPARED}


def _score(run_dir: Path) -> SeedScore | SeedEstimate | None:
    """What was measured; else what was estimated."""
    try:
        summary = read_summary(run_dir) or {}
        seed, metrics = int(summary["seed"]), summary["metrics"]
        if metrics.get("eval_return_mean") is None:
            value, low, high = (float(metrics[f"judge_{name}"]) for name in ("value", "low", "high"))
            return SeedEstimate(seed, value, low, high, str(metrics["judge_verdict"]))
        mean, std = (float(metrics[f"eval_return_{name}"]) for name in ("mean", "std"))
        return SeedScore(seed, mean, std, int(metrics["eval_episodes"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
