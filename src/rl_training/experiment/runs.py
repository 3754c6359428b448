"""Run directories and the small files in them."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import json
import re
from datetime import UTC, datetime
from pathlib import Path

from rl_training.core.atomic import plain_json, reason, write_json_atomic
from rl_training.core.errors import UserError
from rl_training.core.places import CHECKPOINT_FOLDER
from rl_training.core.plain import Facts, State
from rl_training.core.version import library_versions
from rl_training.experiment.summary_file import SUMMARY_FILE

CONFIG_FILE = "config.yaml"


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
