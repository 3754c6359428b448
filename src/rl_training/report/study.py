"""Runs sorted for comparison: tasks, and in each task configurations that differ by more than the seed."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import PurePath
from statistics import fmean

from rl_training.core.algorithms import algorithm_facts
from rl_training.report.metrics import check_metric, common_metric, task_metric
from rl_training.report.run_reader import JUDGED, RunRecord
from rl_training.report.task_keys import DATA_SETTINGS, canonical, data_settings, task_key

# What may differ between repetitions of one configuration, or changes nothing that is learned.
NOT_A_SETTING = {
    *("format_version", "algo", "env_id", "env_kwargs", "algo_kwargs", "seed", "seeds", "tags", "output_dir"),
    *("device", "log_interval", "checkpoint_interval", "keep_checkpoints", "save_best", "compile"),
    *("dataset_in_memory", "judge_at_end"),
}


@dataclass(frozen=True)
class Group:
    """The runs of one configuration in one task.

    Only `runs` enter the statistics: finished, evaluated, one per seed. A repetition with the same seed is no
    independent sample.
    """

    label: str
    color: int
    settings: Mapping[str, object]
    runs: tuple[RunRecord, ...]
    unfinished: tuple[RunRecord, ...]
    repeated: tuple[RunRecord, ...]

    def last(self, metric: str) -> list[float]:
        return [value for run in self.runs if (value := run.last(metric)) is not None]

    def best(self, metric: str) -> list[float]:
        return [point[1] for run in self.runs if (point := run.best(metric)) is not None]

    def mean(self, metric: str) -> float:
        """Mean of the last evaluations; below every number where nothing counts yet."""
        return fmean(self.last(metric)) if self.runs else -math.inf

    @property
    def members(self) -> tuple[RunRecord, ...]:
        return self.runs + self.unfinished + self.repeated


@dataclass(frozen=True)
class Task:
    """An environment, and for methods that learn from data also the data; groups from the best down."""

    label: str
    step_label: str
    groups: tuple[Group, ...]
    metric: str

    @property
    def estimated(self) -> bool:
        """Whether nothing was measured here: the numbers are values by the log."""
        return self.metric == JUDGED

    @property
    def counted(self) -> list[Group]:
        """The groups with at least one run that counts."""
        return [group for group in self.groups if group.runs]

    def data_return(self, metric: str) -> float | None:
        """Mean return of the data on the metric's scale, over the runs that know it."""
        runs = [run for group in self.groups for run in group.members]
        values = [value for run in runs if (value := run.data_return(metric)) is not None]
        return fmean(values) if values else None


@dataclass(frozen=True)
class Study:
    """Everything a report shows, in the order in which it shows it."""

    metric: str
    tasks: tuple[Task, ...]

    @property
    def runs(self) -> list[RunRecord]:
        return [run for task in self.tasks for group in task.groups for run in group.members]


def arrange(runs: Sequence[RunRecord], metric: str | None = None) -> Study:
    """Sort runs into tasks and groups; without a metric, the normalised score where all runs have one."""
    given, metric = metric, metric or common_metric(runs)
    if given is not None or len(runs) > 1:  # one run has a page of its own, also where it was never evaluated
        check_metric(runs, metric)
    by_task: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_task.setdefault(task_key(run), []).append(run)
    first = [members[0] for members in by_task.values()]
    labels = distinct_labels([_task_title(run) for run in first], [_task_settings(run) for run in first])
    colors: dict[str, int] = {}
    tasks = []
    for label, members in sorted(zip(labels, by_task.values(), strict=True), key=lambda pair: pair[0]):
        own = given or task_metric(members, metric)
        tasks.append(Task(label, _step_label(members), tuple(_groups(members, own, colors)), own))
    return Study(metric, tuple(tasks))


def _step_label(runs: Sequence[RunRecord]) -> str:
    entry = algorithm_facts(runs[0].algo)
    if entry is None:
        return "steps"
    if any(run.offline_steps is not None for run in runs):
        return "gradient steps, then environment steps"
    return "environment steps" if entry.online else "gradient steps"


def method_settings(run: RunRecord) -> dict[str, object]:
    """The settings that make a configuration, without seed, paths, data and book-keeping."""
    settings = {**run.config, **run.settings}
    left_out = NOT_A_SETTING | set(DATA_SETTINGS)
    return {name: value for name, value in settings.items() if name not in left_out}


def differing_settings(
    settings: Sequence[Mapping[str, object]], *, missing_differs: bool = False
) -> list[str]:
    """Names whose values are not the same wherever they occur; being absent may count as a value too."""
    names = {name: None for each in settings for name in each}
    found = []
    for name in names:
        values = {canonical(each[name]) for each in settings if name in each}
        absent = missing_differs and any(name not in each for each in settings)
        if len(values) + absent > 1:
            found.append(name)
    return found


def distinct_labels(titles: Sequence[str], settings: Sequence[Mapping[str, object]]) -> list[str]:
    """The titles; equal ones are told apart by as few of their settings as possible."""
    labels = list(titles)
    for title in set(titles):
        members = [index for index, other in enumerate(titles) if other == title]
        shown = _telling_settings([settings[index] for index in members])
        for index in members:
            own = settings[index]
            parts = [f"{name}={show_value(own[name])}" for name in shown if name in own]
            labels[index] += f" ({', '.join(parts)})" if parts else ""
    return labels


def show_value(value: object) -> str:
    """A setting as it would be written in YAML, on one line."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def algorithm_title(algo: str) -> str:
    entry = algorithm_facts(algo)
    return algo if entry is None else entry.class_name


def _groups(runs: Sequence[RunRecord], metric: str, colors: dict[str, int]) -> list[Group]:
    by_method: dict[tuple[str, str], list[RunRecord]] = {}
    for run in runs:
        by_method.setdefault((run.algo, canonical(method_settings(run))), []).append(run)
    methods = [(algo, method_settings(members[0])) for (algo, _), members in by_method.items()]
    titles = [algorithm_title(algo) for algo, _ in methods]
    labels = distinct_labels(titles, [settings for _, settings in methods])
    taken = {colors[label] for label in labels if label in colors}
    free = (color for color in count() if color not in taken)
    found = [
        Group(label, 0, settings, *_counted(members, metric))
        for label, (_, settings), members in zip(labels, methods, by_method.values(), strict=True)
    ]
    groups = []
    for group in sorted(found, key=lambda group: (-group.mean(metric), group.label.lower())):
        if group.label not in colors:  # a label keeps its colour in all tasks
            colors[group.label] = next(free)
        groups.append(replace(group, color=colors[group.label]))
    return groups


def _counted(
    runs: Sequence[RunRecord], metric: str
) -> tuple[tuple[RunRecord, ...], tuple[RunRecord, ...], tuple[RunRecord, ...]]:
    """Runs that count, runs that have not ended or were not evaluated, and repetitions of a seed."""
    counted: dict[str, RunRecord] = {}
    unfinished, repeated = [], []
    for run in sorted(runs, key=lambda run: (str(run.seed).zfill(12), run.name)):
        if not run.finished or run.last(metric) is None:
            unfinished.append(run)
        elif counted.setdefault(canonical(run.seed), run) is not run:
            repeated.append(run)
    return tuple(counted.values()), tuple(unfinished), tuple(repeated)


def _telling_settings(settings: Sequence[Mapping[str, object]]) -> list[str]:
    """Settings that tell all of these apart, each time the one that separates most."""
    names, shown = differing_settings(settings, missing_differs=True), list[str]()

    def kinds(chosen: list[str]) -> int:
        return len({canonical([each.get(name) for name in chosen]) for each in settings})

    while names and kinds(shown) < len(settings):
        shown.append(max(names, key=lambda name: kinds([*shown, name])))
        names.remove(shown[-1])
    return shown


def _task_settings(run: RunRecord) -> dict[str, object]:
    environment = dict(run.config.get("env_kwargs") or {})
    return {**environment, **data_settings(run)}


def _task_title(run: RunRecord) -> str:
    place = run.env_id or "no environment"
    if not data_settings(run):
        return place
    path, name = run.settings.get("dataset_path"), run.settings.get("dataset_id")
    if path:
        return f"{place}, {PurePath(str(path)).name}"
    return f"{place}, {name}" if name else f"{place}, {run.settings.get('dataset_kind', 'given')} data"
