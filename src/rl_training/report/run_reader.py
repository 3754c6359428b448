"""Reading run directories back: what was configured, what was measured, how far it got."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Any

from rl_training.config.yaml_text import read_yaml
from rl_training.core.errors import UserError
from rl_training.core.plain import Facts
from rl_training.data.data_info import ReferenceReturns
from rl_training.experiment.logging import read_metrics
from rl_training.experiment.runs import CONFIG_FILE
from rl_training.experiment.summary_file import read_summary
from rl_training.judging.judgement import Interval

RUN_FORMAT = 1
"""Version of the files in a run directory; one without a number is of the first."""

RETURN = "eval_return_mean"
SCORE = "eval_normalized_score"
JUDGED = "judge_value"
"""What a run without an environment says of its policy in the end, by its log."""
SCORE_REFERENCE = "eval_normalized_score_reference"

METRIC_TITLES = {RETURN: "return", SCORE: "normalised score", JUDGED: "estimated value"}

_DAY = re.compile(r"\d{4}-\d{2}-\d{2}")


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
    def seed(self) -> Any:
        return self.config.get("seed")

    @property
    def metrics(self) -> Facts:
        """The final numbers; none if the run has not ended."""
        return _mapping((self.summary or {}).get("metrics"))

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
        return _mapping((self.summary or {}).get("dataset"))

    @property
    def estimate(self) -> Interval | None:
        """The value that the run's judge gave its final policy; none where it was not judged."""
        value, low, high = (number(self.metrics.get(f"judge_{name}")) for name in ("value", "low", "high"))
        return None if value is None else Interval(value, low, high)

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

    @property
    def versions(self) -> Facts:
        """Library name -> version with which the run ended."""
        return _mapping((self.summary or {}).get("versions"))

    @property
    def day(self) -> str | None:
        """Day on which the run ended, as in 2026-03-12."""
        ended = _mapping((self.summary or {}).get("timing")).get("finished")
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
        return number(_mapping((self.summary or {}).get("timing")).get("seconds"))

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
        config = read_yaml(path / CONFIG_FILE)
        summary = read_summary(path)
        rows = read_metrics(path)
    except UserError:
        raise
    except (OSError, UnicodeDecodeError) as problem:
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


def metric_title(metric: str) -> str:
    """The metric in words: `eval_return_mean` reads "return"."""
    return METRIC_TITLES.get(metric, metric.replace("_", " "))


def number(value: object) -> float | None:
    """A finite number as it is, anything else as `None`: files may hold null, text or worse."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an integer beyond every float
        return None


def _mapping(value: object) -> Facts:
    return value if isinstance(value, Mapping) else {}
