"""Run directories read back and sorted for comparison: tasks, and in each task configurations."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from glob import glob
from itertools import count
from pathlib import Path, PurePath
from statistics import fmean

from rl_training.algorithms.dynamics import ColumnErrors
from rl_training.config.yaml import read_yaml
from rl_training.core.errors import UserError
from rl_training.core.files import parse_json, reason
from rl_training.core.types import Facts, number
from rl_training.data.info import ReferenceReturns
from rl_training.judging.candidates import Candidate, candidate_of, estimate_of
from rl_training.judging.explanation import Explanation
from rl_training.judging.verdict import Interval
from rl_training.runs.directory import CONFIG_FILE, JUDGEMENT_FILE, algorithm_title, read_summary, step_label
from rl_training.runs.tracking import read_metrics

RUN_FORMAT = 1
"""Version of the files in a run directory; one without a number is of the first."""

RETURN = "eval_return_mean"
SCORE = "eval_normalized_score"
JUDGED = "judge_value"
"""What a run without an environment says of its policy in the end, by its log."""
SCORE_REFERENCE = "eval_normalized_score_reference"

METRIC_TITLES = {RETURN: "return", SCORE: "normalised score", JUDGED: "estimated value"}

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")

# What says which data was learned from: part of the task, not of the method.
DATA_SETTINGS = (
    *("dataset_id", "dataset_path", "dataset_kind", "dataset_checkpoint", "dataset_noise"),
    *("dataset_random_share", "dataset_size", "dataset_seed", "dataset_parts"),
)

# What may differ between repetitions of one configuration, or changes nothing that is learned.
NOT_A_SETTING = {
    *("format_version", "algo", "env_id", "env_kwargs", "algo_kwargs", "seed", "seeds", "tags", "output_dir"),
    *("device", "log_interval", "checkpoint_interval", "keep_checkpoints", "save_best", "compile"),
    *("products", "dataset_in_memory", "judge_at_end"),
}


@dataclass(frozen=True)
class RunRecord:
    """One run as its files describe it. Everything in them may be missing, as in a run that was killed."""

    path: Path
    config: Facts
    summary: Facts | None
    rows: tuple[Facts, ...]

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def algo(self) -> str:
        return str(self.config.get("algo", "unknown"))

    @property
    def env_id(self) -> str | None:
        value = self.config.get("env_id")
        return None if value is None else str(value)

    @property
    def seed(self) -> object:
        return self.config.get("seed")

    @property
    def metrics(self) -> Facts:
        """The final numbers; none if the run has not ended."""
        return self._noted("metrics")

    @property
    def settings(self) -> Facts:
        return _mapping(self.config.get("algo_kwargs"))

    @property
    def offline_steps(self) -> int | None:
        """The step after which the online phase begins; none for a run without one."""
        online, offline = (number(self.config.get(name)) for name in ("online_timesteps", "total_timesteps"))
        return int(offline) if online and offline is not None else None

    @property
    def dataset(self) -> Facts:
        """What the run noted about its data; empty for one that learned from interaction."""
        return self._noted("dataset")

    @property
    def estimate(self) -> Interval | None:
        """The value that the run's judge gave its final policy; none where it was not judged."""
        return estimate_of(self.metrics)

    def data_return(self, metric: str) -> float | None:
        """Mean return of the episodes learned from, on the metric's scale; none where that is not known."""
        if metric == JUDGED:
            return number(self.metrics.get("judge_behaviour"))
        return self.on_scale(number(self.dataset.get("return_mean")), metric)

    def on_scale(self, value: float | None, metric: str) -> float | None:
        """A return on the metric's scale; none where that is not known."""
        if value is None or metric == RETURN:
            return value
        reference = _mapping(self.dataset.get("reference"))
        low, high = number(reference.get("minimum")), number(reference.get("maximum"))
        if metric != SCORE or low is None or high is None or low == high:
            return None
        return ReferenceReturns(low, high, "").normalized_score(value)

    @cached_property
    def explanation(self) -> Explanation | None:
        """What the policy does, as far as the run's judgement tells it."""
        path = self.path / JUDGEMENT_FILE
        try:
            told = parse_json(path.read_bytes())
            told = told["policies"][0]["evidence"]["explanation"]
            return None if told is None else Explanation.read(told)
        except (FileNotFoundError, KeyError, IndexError, TypeError):
            return None  # not judged, or by a version that did not tell
        except (OSError, ValueError) as problem:  # cannot be read, is no JSON, or another one
            told = reason(problem) if isinstance(problem, OSError) else problem
            raise UserError(
                f"{path} is not the judgement of a run: {told}; delete it to do without"
            ) from None

    @property
    def model_errors(self) -> tuple[ColumnErrors, ...]:
        """How well the model predicts that its policy was made in; none of a run without one."""
        told = self.metrics.get("model_errors")
        try:
            return tuple(ColumnErrors(**each) for each in told or ())
        except TypeError:
            return ()

    @property
    def versions(self) -> Facts:
        """Library name -> version with which the run ended."""
        return self._noted("versions")

    @property
    def day(self) -> str | None:
        """Day on which the run ended, as in 2026-03-12."""
        ended = self._noted("timing").get("finished")
        return ended[:10] if isinstance(ended, str) and _DAY.match(ended) else None

    @property
    def finished(self) -> bool:
        """Whether training came to its end, by its budget or by its own rule, and not by a signal."""
        return self.summary is not None and self.metrics.get("signal") is None

    @property
    def stop_reason(self) -> str:
        if self.summary is None:
            return "unfinished"
        return str(self.summary.get("stop_reason", "finished"))

    @cached_property
    def last_step(self) -> int:
        return max((row["step"] for row in self.rows), default=0)

    @property
    def seconds(self) -> float | None:
        """Wall time of the training, known once the run has ended."""
        return number(self._noted("timing").get("seconds"))

    def _noted(self, name: str) -> Facts:
        return _mapping((self.summary or {}).get(name))

    def series(self, metric: str, kind: str = "eval") -> list[tuple[int, float]]:
        """Steps and values of a metric; of a step that was logged twice, the later value."""
        points = {}
        for row in self.rows:
            value = number(row.get(metric))
            if row.get("kind") == kind and value is not None:
                points[int(row["step"])] = value
        return sorted(points.items())

    def last(self, metric: str) -> float | None:
        series = self.series(metric)
        return series[-1][1] if series else None

    def best(self, metric: str) -> tuple[int, float] | None:
        """Step and value of the highest evaluation, the first of equal ones."""
        return max(self.series(metric), key=lambda point: (point[1], -point[0]), default=None)


def find_runs(paths: Iterable[str | Path]) -> list[RunRecord]:
    """The runs that the paths name: run directories, folders with runs in them, patterns such as `sac-*`."""
    found: dict[Path, Path] = {}
    for given in paths:
        path = Path(given).expanduser()
        matches = [path] if path.exists() else [Path(match) for match in sorted(glob(str(path)))]
        folders = [file.parent for match in matches for file in sorted(match.rglob(CONFIG_FILE))]
        if not folders:
            problem = "has no run in it" if matches else "does not exist"
            raise UserError(
                f"{given} {problem}: name a run directory (with {CONFIG_FILE}) or a folder of runs"
            )
        for folder in folders:
            found.setdefault(folder.resolve(), folder)
    return [read_run(folder) for folder in found.values()]


def read_run(run_dir: str | Path) -> RunRecord:
    """Read one run directory; files that are not there yet are fine, files of another format are not."""
    path = Path(run_dir)
    try:
        config, summary, rows = read_yaml(path / CONFIG_FILE), read_summary(path), read_metrics(path)
    except OSError as problem:
        raise UserError(f"run {path} cannot be read: {problem}") from problem
    if not isinstance(config, dict):
        raise UserError(f"{path / CONFIG_FILE} is not the config of a run: it must be a mapping of settings")
    for version in (config.get("format_version"), (summary or {}).get("format_version")):
        if version not in (None, RUN_FORMAT):
            raise UserError(
                f"run {path} has format version {version!r}, this release reads version {RUN_FORMAT}: "
                "use the release that wrote it, or leave this run out"
            )
    return RunRecord(path, config, summary, tuple(rows))


def _mapping(value: object) -> Facts:
    return value if isinstance(value, Mapping) else {}


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

    @property
    def judged(self) -> Candidate | None:
        """What the judges of the counted runs say together; none where nothing counts yet."""
        return candidate_of(run.metrics for run in self.runs)

    def place(self, metric: str) -> tuple[int, float]:
        """What groups are sorted by, from the best down: the mean, or the judge's order where it decides."""
        judged = self.judged if metric == JUDGED else None
        if judged is not None:
            return judged.place
        return 0, -fmean(self.last(metric)) if self.runs else math.inf

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

    @property
    def data_return(self) -> float | None:
        """Mean return of the data on the metric's scale, over the runs that know it."""
        runs = [run for group in self.groups for run in group.members]
        values = [value for run in runs if (value := run.data_return(self.metric)) is not None]
        return fmean(values) if values else None


@dataclass(frozen=True)
class Study:
    """Everything a report shows, in the order in which it shows it."""

    metric: str
    tasks: tuple[Task, ...]

    @property
    def members(self) -> Iterator[tuple[Task, Group, RunRecord]]:
        return ((task, group, run) for task in self.tasks for group in task.groups for run in group.members)

    @property
    def runs(self) -> list[RunRecord]:
        return [run for _, _, run in self.members]


def arrange(runs: Sequence[RunRecord], metric: str | None = None) -> Study:
    """Sort runs into tasks and groups; without a metric, the normalised score where all runs have one."""
    given, metric = metric, metric or common_metric(runs)
    if given is not None or len(runs) > 1:  # one run has a page of its own, also where it was never evaluated
        check_metric(runs, metric)
    by_task: dict[str, list[RunRecord]] = {}
    for run in runs:
        by_task.setdefault(task_key(run), []).append(run)
    first = [members[0] for members in by_task.values()]
    settings = [{**(run.config.get("env_kwargs") or {}), **data_settings(run)} for run in first]
    labels = distinct_labels([_task_title(run) for run in first], settings)
    colors: dict[str, int] = {}
    tasks = []
    for label, members in sorted(zip(labels, by_task.values(), strict=True), key=lambda pair: pair[0]):
        own = given or task_metric(members, metric)
        online = any(run.offline_steps is not None for run in members)
        steps = step_label(members[0].algo, goes_online=online)
        tasks.append(Task(label, steps, tuple(_groups(members, own, colors)), own))
    return Study(metric, tuple(tasks))


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
    for group in sorted(found, key=lambda group: (group.place(metric), group.label.lower())):
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


def _task_title(run: RunRecord) -> str:
    place = run.env_id or "no environment"
    if not data_settings(run):
        return place
    path, name = run.settings.get("dataset_path"), run.settings.get("dataset_id")
    if path:
        return f"{place}, {PurePath(str(path)).name}"
    return f"{place}, {name}" if name else f"{place}, {run.settings.get('dataset_kind', 'given')} data"


# Which runs belong together.


def environment_key(run: RunRecord) -> str:
    """Equal for runs whose returns mean the same."""
    return canonical([run.env_id, run.config.get("env_kwargs") or {}])


def task_key(run: RunRecord) -> str:
    """Equal for runs that are repetitions or rivals: the same environment and the same data."""
    return canonical([environment_key(run), data_settings(run)])


def data_settings(run: RunRecord) -> dict[str, object]:
    """Data settings that say something: an older release may not have written those that are 0 or empty."""
    return {name: value for name in DATA_SETTINGS if (value := run.settings.get(name))}


def canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


# What runs are compared by.


def metric_title(metric: str) -> str:
    """The metric in words: `eval_return_mean` reads "return"."""
    return METRIC_TITLES.get(metric, metric.replace("_", " "))


def task_metric(runs: Sequence[RunRecord], common: str) -> str:
    """The metric of the whole report, unless the runs of this task were never tried out but judged."""
    if any(run.series(common) for run in runs) or not any(run.series(JUDGED) for run in runs):
        return common
    check_metric(runs, JUDGED)
    return JUDGED


def common_metric(runs: Sequence[RunRecord]) -> str:
    """The normalised score if every measured run has it, else the return, else the value by the log."""
    measured = [run for run in runs if run.series(RETURN) or not run.series(JUDGED)]
    if measured and all(run.series(SCORE) for run in measured):
        return SCORE
    judged = not any(run.series(RETURN) for run in runs) and any(run.series(JUDGED) for run in runs)
    return JUDGED if judged else RETURN


def check_metric(runs: Sequence[RunRecord], metric: str) -> None:
    """Refuse a metric that no run has, and scores that are relative to different references."""
    if not any(run.series(metric) for run in runs):
        known = sorted(
            {name for run in runs for row in run.rows if row.get("kind") == "eval" for name in row}
        )
        names = ", ".join(name for name in known if name not in ("step", "kind", "time")) or "none"
        raise UserError(
            f"metric {metric!r} is in no evaluation of these {len(runs)} runs; they have: {names}"
        )
    discounts = {run.settings.get("judge_gamma") for run in runs if run.series(JUDGED)}
    if metric == JUDGED and len(discounts) > 1:
        raise UserError(
            f"values estimated with different judge_gamma ({', '.join(sorted(map(str, discounts)))}) cannot "
            "be compared: judge the policies together with `rl-training judge`"
        )
    references: dict[str, set[str]] = {}
    for run in runs if metric == SCORE else ():
        found = {str(row[SCORE_REFERENCE]) for row in run.rows if row.get(SCORE_REFERENCE) is not None}
        references.setdefault(task_key(run), set()).update(found)
    for several in references.values():
        if len(several) > 1:
            raise UserError(
                f"normalised scores relative to different references ({', '.join(sorted(several))}) "
                f"cannot be compared: use --metric {RETURN}"
            )
