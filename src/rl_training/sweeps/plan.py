"""A sweep: one file that stands for many runs, where each lives and how far it got, which are one batch."""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pydantic import field_validator

from rl_training.config import ConfigModel, setting
from rl_training.config.run import TrainConfig, apply_overrides, load_config, parse_config, read_settings
from rl_training.core.checkpoints import newest_checkpoint
from rl_training.core.errors import ConfigError, UserError, shown
from rl_training.core.files import CHECKPOINT_FOLDER, parse_json, write_json_atomic
from rl_training.core.types import Facts, State, number
from rl_training.judging.candidates import candidate_of
from rl_training.runs.directory import CONFIG_FILE, directory_name, read_summary, run_name
from rl_training.runs.tracking import read_metrics

SMALL_LAYER = 64
SHORT_RUN = 100_000
GROUPS_FILE = "groups.json"
EXAMPLE = "base: sac/pendulum"


class SweepConfig(ConfigModel):
    """Every variant with every point of the grid, and each of these with every seed."""

    base: str | dict[str, object] = setting(..., "config that all runs start from: name, file or mapping")
    grid: dict[str, Any] = setting({}, "for each key a list of values; all combinations are run")
    variants: tuple[dict[str, object], ...] = setting((), "overrides, each a mapping; `name` names it")
    seeds: tuple[int, ...] | None = setting(
        None, "seeds of every configuration; null = those of its own config", ge=0
    )
    output_dir: str | None = setting(None, "directory of the sweep; null = runs/ and the name of the file")
    stack: Literal["auto"] | bool = setting(
        "auto", "train the seeds of a configuration as one batch; auto = small networks and short runs"
    )
    metric: str = setting(
        "auto",
        "what configurations are ranked by in the end: auto (eval_return_mean with an environment, "
        "judge_score without), judge_score, a metric of evaluations (eval_…), or none",
    )
    retries: int = setting(2, "further attempts at a run that crashed", ge=0)

    @field_validator("seeds")
    @classmethod
    def _seeds_differ(cls, value: tuple[int, ...] | None) -> tuple[int, ...] | None:
        if value is not None and (not value or len(set(value)) < len(value)):
            raise ValueError(f"seeds must be different seeds, at least one, got {list(value)}")
        return value

    @field_validator("metric")
    @classmethod
    def _metric_can_rank(cls, value: str) -> str:
        if value not in ("auto", "judge_score", "none") and not value.startswith("eval_"):
            raise ValueError(f"metric must be auto, judge_score, none or begin with eval_, got {value!r}")
        return value

    @classmethod
    def further_mistakes(cls, values: Mapping[str, object]) -> list[str]:
        grid = values.get("grid", {})
        if not isinstance(grid, Mapping):
            return []
        variants = values.get("variants")
        several = variants if isinstance(variants, list | tuple) else ()
        varied = [key for each in several if isinstance(each, Mapping) for key in each]
        lines = [
            f"grid.{key} must be a list of at least one value, got {shown(choices)}"
            for key, choices in grid.items()
            if not isinstance(choices, list | tuple) or not choices
        ]
        lines += [f"{key} is varied by grid and by variants: leave one out" for key in grid if key in varied]
        seeds = values.get("seeds")
        for key in dict.fromkeys([*grid, *varied]):  # what the sweep itself decides would be ignored
            if key == "output_dir":
                lines.append("output_dir must not be varied: each configuration has a directory of its own")
            if key in ("seed", "seeds") and seeds is not None:
                lines.append(f"{key} must not be varied where the sweep has seeds, got seeds {shown(seeds)}")
        return lines


def load_sweep_config(source: str | os.PathLike[str]) -> SweepConfig:
    """Read a sweep file, or a packaged sweep by its name."""
    return SweepConfig.build(read_settings(source, "sweep", SweepConfig.model_fields, EXAMPLE))


def expand(sweep: SweepConfig) -> dict[str, TrainConfig]:
    """The configurations by name; the mistakes of all of them are reported together."""
    mistakes: list[str] = []
    found: dict[str, TrainConfig] = {}
    for name, overrides in _combinations(sweep):
        if name in found:
            mistakes.append(f"run name {name!r} is used twice; give each of the variants a `name` of its own")
            continue
        try:
            found[name] = parse_config(changed_base(sweep.base, overrides))
        except ConfigError as error:
            mistakes += [f"{name}: {line}" for line in str(error).splitlines()]
    if mistakes:
        raise ConfigError("\n".join(mistakes))
    return found


def changed_base(base: str | Mapping[str, object], overrides: Mapping[str, object]) -> State:
    """The base config with dotted keys replaced; the override `base` takes another config instead."""
    chosen = overrides.get("base", base)
    values = deepcopy(dict(chosen)) if isinstance(chosen, Mapping) else load_config(str(chosen)).to_dict()
    apply_overrides(values, [(key, deepcopy(value)) for key, value in overrides.items() if key != "base"])
    return values


def _combinations(sweep: SweepConfig) -> Iterator[tuple[str, dict[str, object]]]:
    """Names and overrides; a key that has one value only does not appear in a name."""
    telling = [key for key, choices in sweep.grid.items() if len(choices) > 1]
    for variant in sweep.variants or ({},):
        own = {key: value for key, value in variant.items() if key != "name"}
        words = [_label(key, value) for key, value in own.items()]
        if "name" in variant:
            words = [str(variant["name"])]
        for point in itertools.product(*sweep.grid.values()):
            overrides = dict(zip(sweep.grid, point, strict=True))
            parts = [*words, *(_label(key, overrides[key]) for key in telling)]
            yield directory_name(*(parts or ["base"])), {**own, **overrides}


def _label(key: str, value: object) -> str:
    """`gamma=0.98`; an algorithm or a base config speaks for itself."""
    text = "x".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
    return text if key in ("algo", "base") else f"{key.rpartition('.')[2]}={text}"


@dataclass(frozen=True)
class SweepRun:
    """One run: its name, its checked config and the only directory it may use."""

    name: str
    config: TrainConfig
    run_dir: Path

    @classmethod
    def inside(cls, folder: Path, name: str, config: TrainConfig) -> SweepRun:
        return cls(name, config, folder / directory_name(run_name(config)))

    @property
    def status(self) -> Status:
        """As its directory tells it now."""
        return run_status(self.run_dir)


@dataclass(frozen=True)
class Task:
    """What one process trains: a run, or several seeds as one batch."""

    runs: tuple[SweepRun, ...]

    @property
    def name(self) -> str:
        return self.runs[0].name

    @property
    def done(self) -> bool:
        return all(run.status.done for run in self.runs)

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
        [
            SweepRun.inside(
                folder / name,
                f"{name}-s{seed}",
                config.replace(seed=seed, seeds=None, output_dir=str(folder / name)),
            )
            for seed in sweep.seeds or config.seeds or (config.seed,)
        ]
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


# ---- what a run directory tells: how far the run in it got, and whether it is the run that it should be


FAILURE_FILE = "failure.json"
OWN_ENTRIES = {CHECKPOINT_FOLDER, FAILURE_FILE}


@dataclass(frozen=True)
class Status:
    """`new`: nothing worth keeping. `interrupted`: there is a checkpoint. `crashed`: it said why."""

    state: Literal["new", "interrupted", "crashed", "done"]
    step: int = 0
    eval_return: float | None = None
    problem: str | None = None
    can_resume: bool = False
    metrics: Facts = field(default_factory=dict)
    """The numbers that a finished run ended with."""

    @property
    def done(self) -> bool:
        return self.state == "done"

    @property
    def shown_return(self) -> str:
        """The return, or the value by the log where nothing was measured."""
        judged = candidate_of([self.metrics])
        if self.eval_return is None and judged is not None:
            return f"{judged.value.value:,.4g} estimated, {judged.told}"
        return "" if self.eval_return is None else f"{self.eval_return:,.1f}"


def run_status(run_dir: Path) -> Status:
    """Done, interrupted, crashed or new; a summary that a signal left behind does not count as done."""
    rows = read_metrics(run_dir)
    step = max((row["step"] for row in rows), default=0)
    try:
        summary = read_summary(run_dir) or {}
    except UserError:
        summary = {}  # one that cannot be read counts as none: the run is resumed, or done again
    reason = summary.get("stop_reason") or "signal"
    if not reason.startswith("signal"):
        metrics = summary.get("metrics") or {}
        reached = metrics.get("global_step")
        step = reached if isinstance(reached, int) else step
        return Status("done", step, number(metrics.get("eval_return_mean")), metrics=metrics)
    returns = [row["eval_return_mean"] for row in rows if row.get("eval_return_mean") is not None]
    eval_return = returns[-1] if returns else None
    can_resume = newest_checkpoint(run_dir) is not None
    if (problem := _failure(run_dir)) is not None:
        return Status("crashed", step, eval_return, problem, can_resume)
    return Status("interrupted" if can_resume else "new", step, eval_return, None, can_resume)


def _failure(run_dir: Path) -> str | None:
    """Why the run crashed, where it could write that down."""
    try:
        written = parse_json((run_dir / FAILURE_FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return str(written.get("error")) if isinstance(written, dict) and written else None


def final_metrics(run_dir: Path) -> Facts:
    """The numbers a finished run ended with; none of a run that is not done."""
    return run_status(run_dir).metrics


def refuse_foreign(run_dir: Path, config: TrainConfig) -> None:
    """A directory that holds anything but this very run is never touched."""
    file = run_dir / CONFIG_FILE
    if not file.is_file():
        if run_dir.exists() and {entry.name for entry in run_dir.iterdir()} - OWN_ENTRIES:
            raise ConfigError(f"{run_dir} holds files that are not a run; give another output_dir")
        return
    try:
        saved = load_config(file)
    except UserError as problem:
        line = str(problem).splitlines()[0]
        raise ConfigError(
            f"{run_dir} holds a run of another version ({line}); give another output_dir"
        ) from None
    left, right = _resolved(saved), _resolved(config)
    different = [name for name in sorted(left.keys() | right.keys()) if left.get(name) != right.get(name)]
    if different:
        raise ConfigError(
            f"{run_dir} holds a run with another {', '.join(different)}; give another output_dir or delete it"
        )


def _resolved(config: TrainConfig) -> dict[str, object]:
    values = config.to_dict()
    settings = config.run_config().to_dict()
    del values["output_dir"], values["algo_kwargs"]  # a sweep's directory may be moved
    return values | {f"algo_kwargs.{name}": value for name, value in settings.items()}
