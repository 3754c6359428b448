"""Run directories with chosen numbers, written without training: what reports are made from."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from rl_training.runs.directory import CONFIG_FILE, SUMMARY_FILE
from rl_training.runs.tracking import METRICS_FILE

DATASET = {"source": "random data", "transitions": 1000, "episodes": 5, "return_mean": -1200.5}


def fake_run(
    folder: Path,
    algo: str = "sac",
    seed: int = 0,
    returns: Sequence[float] = (-900.0, -300.0, -200.0),
    *,
    name: str | None = None,
    env_id: str = "Pendulum-v1",
    finished: bool = True,
    settings: Mapping[str, Any] | None = None,
    score: bool = False,
    summary: Mapping[str, Any] | None = None,
    online_from: int | None = None,
) -> Path:
    """One run, evaluated every 100 steps with the given returns (and as scores, if asked: return / 10).

    With `online_from` it goes online after that step, and its collected episodes are 10 worse each time.
    """
    run_dir = folder / (name or f"{algo}-{env_id}-s{seed}")
    (run_dir / "checkpoints").mkdir(parents=True)
    steps = 100 * len(returns)
    config = {"algo": algo, "env_id": env_id, "seed": seed, "total_timesteps": steps}
    if online_from is not None:
        config |= {"total_timesteps": online_from, "online_timesteps": steps - online_from}
    (run_dir / CONFIG_FILE).write_text(yaml.safe_dump({**config, "algo_kwargs": dict(settings or {})}))
    rows: list[dict[str, Any]] = []
    for index, value in enumerate(returns, start=1):
        step = 100 * index
        rows.append({"step": step, "kind": "train", "time": 0.0, "updates_per_second": 50.0})
        rows.append({"step": step, "kind": "eval", "time": 0.0, "eval_return_mean": value})
        if score:
            rows[-1] |= {"eval_normalized_score": value / 10, "eval_normalized_score_reference": "toy"}
        if online_from is not None and step > online_from:
            collected = {"rollout_episodes": 1.0, "rollout_return_mean": value - 10.0}
            rows.append({"step": step, "kind": "collect", "time": 0.0, **collected})
    (run_dir / METRICS_FILE).write_text("".join(json.dumps(row) + "\n" for row in rows))
    if finished:
        written = {
            "stop_reason": "finished",
            "metrics": {"global_step": 100 * len(returns), "signal": None},
            "timing": {"seconds": 10.0},
            "dataset": DATASET if settings and "dataset_kind" in settings else {},
        }
        (run_dir / SUMMARY_FILE).write_text(json.dumps({**written, **(summary or {})}))
    return run_dir


def fake_study(folder: Path, seeds: int = 4) -> Path:
    """Two algorithms, one of them in two configurations, that differ clearly in what they reach."""
    generator = np.random.default_rng(0)
    steps = np.linspace(0.0, 1.0, 12)
    for algo, settings, level in (
        ("td3_bc", {"dataset_kind": "random", "alpha": 2.5}, -150.0),
        ("iql", {"dataset_kind": "random", "expectile": 0.7}, -250.0),
        ("iql", {"dataset_kind": "random", "expectile": 0.9}, -400.0),
    ):
        for seed in range(seeds):
            noise = generator.normal(0.0, 20.0, steps.size)
            returns = level - 900.0 * np.exp(-6.0 * steps) + noise
            name = f"{algo}-{settings.get('expectile', '')}-s{seed}"
            fake_run(folder, algo, seed, returns.tolist(), name=name, settings=settings)
    return folder
