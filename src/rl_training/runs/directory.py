"""Run directories and the small files in them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from rl_training.config.run import TrainConfig
from rl_training.config.yaml import read_yaml
from rl_training.core.errors import UserError
from rl_training.core.files import CHECKPOINT_FOLDER, parse_json, plain_json, reason, write_json_atomic
from rl_training.core.registry import algorithm_facts
from rl_training.core.schema import SchemaProblem, read_facts
from rl_training.core.types import Facts, State
from rl_training.core.version import library_versions
from rl_training.policies.export.card import SeedEstimate, SeedScore

SUMMARY_FILE = "summary.json"
JUDGEMENT_FILE = "judgement.json"
"""What a run that was judged by its log says of its policy, in full."""


@dataclass(frozen=True)
class TimingFacts:
    """When the run began and ended."""

    started: str | None = None
    finished: str | None = None
    seconds: float | None = None


@dataclass(frozen=True)
class SummaryFacts:
    """Every entry of a summary; a run of an earlier version lacks some."""

    format_version: int | None = None
    algo: str | None = None
    env_id: str | None = None
    seed: int | None = None
    stop_reason: str | None = None
    metrics: Facts | None = None
    timing: TimingFacts | None = None
    config_hash: str | None = None
    versions: Mapping[str, str] | None = None
    checkpoint: str | None = None
    dataset: Facts | None = None
    parent: Facts | None = None
    products: str | None = None
    processor: str | None = None


def read_summary(run_dir: Path) -> State | None:
    """The summary as it was written, or None where the run has not ended."""
    path = run_dir / SUMMARY_FILE
    try:
        summary = parse_json(path.read_bytes())
        read_facts(SummaryFacts, summary)
    except FileNotFoundError:
        return None
    except OSError as problem:
        raise UserError(f"{path} cannot be read: {problem.strerror or problem}") from None
    except SchemaProblem as problem:
        raise UserError(
            f"{path} is not the summary of a run: {problem}; delete it to have the run read as unfinished"
        ) from None
    except ValueError as problem:
        raise UserError(
            f"{path} is not valid JSON ({problem}): delete it to have the run read as unfinished"
        ) from None
    return dict(summary)


CONFIG_FILE = "config.yaml"


def run_name(config: TrainConfig) -> str:
    """What its directory is called where it is given no other name."""
    return f"{config.algo}-{config.env_id or 'data'}-s{config.seed}"


def create_run_dir(output_dir: str | Path, name: str, suffix: str | None = None) -> Path:
    """Create `<output_dir>/<name>[-<suffix>]` with an empty `checkpoints` folder.

    A name that is taken gets a number, `-2` and so on; two processes that start at once get different ones.
    """
    stem = directory_name(name) if suffix is None else directory_name(name, suffix)
    parent = Path(output_dir).expanduser()
    try:
        parent.mkdir(parents=True, exist_ok=True)
        run_dir = parent / stem
        for number in itertools.count(2):
            with contextlib.suppress(FileExistsError):
                run_dir.mkdir()
                break
            run_dir = parent / f"{stem}-{number}"
        (run_dir / CHECKPOINT_FOLDER).mkdir()
    except OSError as problem:
        raise UserError(
            f"output_dir {output_dir} cannot be written: {reason(problem)}; name a directory you can write to"
        ) from problem
    return run_dir


def directory_name(*parts: str) -> str:
    """The parts as one name of a directory on every system.

    Characters that a path cannot hold everywhere, such as the `/` of some environment ids, become `-`.
    """
    return re.sub(r"[^A-Za-z0-9._=-]+", "-", "-".join(parts)).strip("-.") or "run"


def algorithm_title(algo: str) -> str:
    """The name of its class, as people write it; of an unknown one its own."""
    entry = algorithm_facts(algo)
    return algo if entry is None else entry.class_name


def step_label(algo: str, *, goes_online: bool) -> str:
    """What the steps of its runs count."""
    entry = algorithm_facts(algo)
    if entry is None:
        return "steps"
    if goes_online:
        return "gradient steps, then environment steps"
    return "environment steps" if entry.online else "gradient steps"


def config_hash(config: Facts) -> str:
    """Sixteen hex digits that are equal for equal configs, whatever the order of their keys."""
    text = json.dumps(plain_json(config), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def summarize_run(
    config: Facts,
    metrics: Facts,
    *,
    stop_reason: str,
    started_at: float,
    finished_at: float,
) -> State:
    """What `summary.json` holds; the times are seconds since the epoch."""
    return {
        "algo": config.get("algo"),
        "env_id": config.get("env_id"),
        "seed": config.get("seed"),
        "stop_reason": stop_reason,
        "metrics": dict(metrics),
        "timing": {
            "started": _utc(started_at),
            "finished": _utc(finished_at),
            "seconds": round(finished_at - started_at, 3),
        },
        "config_hash": config_hash(config),
    }


def write_summary(run_dir: str | Path, summary: Facts) -> Path:
    """Write `summary.json`, with the library versions added, and return its path."""
    path = Path(run_dir) / SUMMARY_FILE
    write_json_atomic(path, {**summary, "versions": library_versions()})
    return path


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")


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
