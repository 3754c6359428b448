"""Run directories: their names and small files, who may work in one, and the checkpoints in it."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import itertools
import json
import math
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

from rl_training.config.run import TrainConfig
from rl_training.config.yaml import read_yaml
from rl_training.core.checkpoints import (
    best_checkpoint_path,
    checkpoint_path,
    list_checkpoints,
    prune_checkpoints,
    save_checkpoint,
    strip_subtree,
)
from rl_training.core.errors import RunFailed, UserError
from rl_training.core.files import CHECKPOINT_FOLDER, parse_json, plain_json, reason, write_json_atomic
from rl_training.core.registry import algorithm_facts
from rl_training.core.schema import SchemaProblem, read_facts
from rl_training.core.types import Facts, Numbers, State
from rl_training.core.version import library_versions
from rl_training.policies.export.card import SeedEstimate, SeedScore
from rl_training.runtime.callbacks import Callback, Interval, Run

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


# ---- saving: one process per run directory; periodic, best and last checkpoints


PATIENCE_SECONDS = 60.0
"""How long a run that was told to stop may take to save."""

_held: set[int] = set()


@contextmanager
def lock_run(path: Path, *, patience: float = PATIENCE_SECONDS) -> Iterator[None]:
    """Hold `<path>.lock`; a directory that another process still works in is waited for, then refused.

    The lock lies beside the directory, because a run that starts again clears its directory.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("ab") as file:
        deadline = time.monotonic() + patience
        while not _try_lock(file.fileno()):
            if time.monotonic() >= deadline:
                raise in_use(path)
            time.sleep(0.1)
        yield


class RunLock(Callback):
    """The lock on a run directory itself, held from before its first file is written until the run closes.

    A run that goes on is claimed before its newest checkpoint is looked for: nobody may be writing one.
    """

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self.descriptor: int | None = os.open(run_dir, os.O_RDONLY)
        _held.add(self.descriptor)
        try:
            free = _try_lock(self.descriptor)
        except OSError:  # a file system without locks
            free = True
        if not free:
            self.release()
            raise in_use(run_dir)

    def close(self, run: Run) -> None:
        self.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    def release(self) -> None:
        if self.descriptor is not None:
            _held.discard(self.descriptor)
            os.close(self.descriptor)
            self.descriptor = None


def refuse_directory_in_use(run_dir: Path) -> None:
    """Before a directory is cleared: nobody may be training in it."""
    RunLock(run_dir).release()


def in_use(path: Path) -> RunFailed:
    return RunFailed(f"{path} is in use by another process; wait for it or stop it")


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _let_go_in_the_child() -> None:
    """A process of an environment that outlives its killed parent must not keep the directory."""
    for descriptor in _held:
        with suppress(OSError):
            os.close(descriptor)
    _held.clear()


os.register_at_fork(after_in_child=_let_go_in_the_child)


class Checkpoints(Callback):
    """Writes `step_<n>` every `checkpoint_interval` steps and at the end, `best` when evaluation improves."""

    def __init__(self, checkpoint_interval: int, *, keep: int, save_best: bool) -> None:
        self.interval = Interval(checkpoint_interval)
        self.keep, self.save_best = keep, save_best
        self.best: float | None = None

    def on_train_start(self, run: Run) -> None:
        self.interval.start(run.global_step)

    def on_step_end(self, run: Run) -> None:
        if self.interval.due(run.global_step):
            self.save(run)

    def on_train_end(self, run: Run) -> None:
        self.save(run)

    def on_eval_end(self, run: Run, metrics: Numbers, scheduled: bool) -> None:
        value = metrics.get("eval_return_mean")
        if not self.save_best or value is None or (self.best is not None and value <= self.best):
            return
        refuse_broken(run)
        refuse_missing_directory(run)
        save_checkpoint(best_checkpoint_path(run.run_dir), run.state_dict(with_replay=False))
        if scheduled:
            self.best = value

    def save(self, run: Run) -> Path:
        """The newest checkpoint; those before it give up their replay rows once it is safely there."""
        refuse_broken(run)
        refuse_missing_directory(run)
        path = checkpoint_path(run.run_dir, run.global_step)
        save_checkpoint(path, run.state_dict(with_replay=True))
        run.checkpoint_path = path
        prune_checkpoints(run.run_dir, self.keep)
        for older in list_checkpoints(run.run_dir)[:-1]:
            strip_subtree(older, "replay")
        return path

    def state_dict(self) -> State:
        return {"best": self.best}

    def load_state_dict(self, state: State) -> None:
        self.best = None if state["best"] is None else float(state["best"])


def refuse_broken(run: Run) -> None:
    """A run whose losses or weights are no longer numbers ends here: its last checkpoint stays good."""
    refuse_broken_metrics(run, run.update_metrics())
    if not run.learner.is_finite():
        raise RunFailed(f"step {run.global_step}: the networks' weights are no longer finite{last_good(run)}")


def refuse_missing_directory(run: Run) -> None:
    """A directory that somebody has deleted is not made anew behind their back."""
    if not run.run_dir.is_dir():
        raise RunFailed(f"step {run.global_step}: the run directory {run.run_dir} is gone; nothing was saved")


def refuse_broken_metrics(run: Run, metrics: Mapping[str, float]) -> None:
    for name, value in metrics.items():
        if not math.isfinite(value):
            raise RunFailed(f"step {run.global_step}: {name} became {value}{last_good(run)}")


def last_good(run: Run) -> str:
    path = run.checkpoint_path
    return f"; last good checkpoint: {path}" if path else "; no checkpoint was saved before"
