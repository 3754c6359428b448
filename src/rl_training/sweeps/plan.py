"""The runs of a sweep: which there are, where each of them lives, which are trained as one batch."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rl_training.core.atomic import write_json_atomic
from rl_training.core.errors import ConfigError
from rl_training.core.json_text import parse_json
from rl_training.core.train_config import TrainConfig, parse_config
from rl_training.experiment.runs import directory_name
from rl_training.experiment.training import run_name
from rl_training.sweeps.sweep_config import SweepConfig, expand

SMALL_LAYER = 64
SHORT_RUN = 100_000
GROUPS_FILE = "groups.json"


@dataclass(frozen=True)
class SweepRun:
    """One run: its name, its checked config and the only directory it may use."""

    name: str
    config: TrainConfig
    run_dir: Path


@dataclass(frozen=True)
class Task:
    """What one process trains: a run, or several seeds as one batch."""

    runs: tuple[SweepRun, ...]

    @property
    def name(self) -> str:
        return self.runs[0].name

    def to_json(self) -> str:
        """Plain text, which any process on any machine reads back."""
        return json.dumps(
            [{"name": r.name, "config": r.config.to_dict(), "run_dir": str(r.run_dir)} for r in self.runs]
        )

    @classmethod
    def from_json(cls, text: str) -> Task:
        return cls(
            tuple(
                SweepRun(item["name"], parse_config(item["config"]), Path(item["run_dir"]))
                for item in parse_json(text)
            )
        )


def plan_sweep(
    sweep: SweepConfig, output_dir: Path, expanded: Mapping[str, TrainConfig] | None = None
) -> list[Task]:
    """The tasks of a sweep. Runs that were grouped before stay in their groups."""
    folder = Path(os.path.abspath(output_dir.expanduser()))
    configurations = [
        [_seed_run(name, config, seed, folder) for seed in sweep.seeds]
        for name, config in (expanded or expand(sweep)).items()
    ]
    runs = {run.name: run for seeds in configurations for run in seeds}
    tasks: list[Task] = []
    grouped: set[str] = set()
    for names in _stored_groups(folder):
        if all(name in runs for name in names) and not grouped & set(names):
            tasks.append(Task(tuple(runs[name] for name in names)))
            grouped |= set(names)
    for seeds in configurations:
        left = [run for run in seeds if run.name not in grouped]
        wanted = stacking_pays(seeds[0].config) if sweep.stack == "auto" else sweep.stack
        if wanted and len(left) > 1:
            tasks.append(Task(tuple(left)))
        else:
            tasks += [Task((run,)) for run in left]
    order = {name: index for index, name in enumerate(runs)}
    return sorted(tasks, key=lambda task: order[task.name])


def store_groups(tasks: Sequence[Task], output_dir: Path) -> None:
    """Remember who is trained with whom: a stack rounds otherwise than its seeds alone."""
    groups = [[run.name for run in task.runs] for task in tasks]
    write_json_atomic(output_dir / GROUPS_FILE, {"groups": groups})


def stacking_pays(config: TrainConfig) -> bool:
    """Small products waste most of their time on overhead, which a stack shares.

    Decided by the config alone, not by the machine: where a sweep runs must not change its results. A stack
    that is interrupted starts again, so only short runs are stacked unasked.
    """
    widths = getattr(config.run_config(), "hidden_sizes", ())
    small = bool(widths) and max(widths) <= SMALL_LAYER
    return small and config.total_timesteps <= SHORT_RUN


def _seed_run(variant: str, config: TrainConfig, seed: int, output_dir: Path) -> SweepRun:
    folder = output_dir / variant
    seeded = config.replace(seed=seed, seeds=None, output_dir=str(folder))
    return SweepRun(f"{variant}-s{seed}", seeded, folder / directory_name(run_name(seeded)))


def _stored_groups(output_dir: Path) -> list[list[str]]:
    path = output_dir / GROUPS_FILE
    if not path.is_file():
        return []
    try:
        groups: list[list[str]] = parse_json(path.read_text(encoding="utf-8"))["groups"]
        return [[str(name) for name in names] for names in groups]
    except (ValueError, KeyError, TypeError, OSError) as problem:
        raise ConfigError(
            f"{path} cannot be read ({problem}); give another output_dir, or delete the file to group anew"
        ) from None
