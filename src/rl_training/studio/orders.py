"""What can be started from the page: ordinary commands of the command line, with checked settings."""

from __future__ import annotations

import shlex
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from rl_training.config import ConfigModel, setting
from rl_training.core.errors import ConfigError, UserError, shown
from rl_training.core.expressions import split_list
from rl_training.core.registry import algorithm_facts, algorithm_names
from rl_training.core.types import Facts, State
from rl_training.studio.folder import Folder, log_address

CURVE_POINTS = 100
"""Rows of metrics that a training should write, so that its curve is smooth."""
MOST_RUNS = 200


class LogChoice(ConfigModel):
    """A log and what its columns are."""

    file: str = setting(..., "the log, by its name in the directory")
    observations: tuple[str, ...] = setting((), "columns of the observation, or formulas")
    actions: tuple[str, ...] = setting((), "columns of the action; of a choice with its levels: pump{off,on}")
    reward: str | None = setting(None, "column of the reward, or a formula")
    episode: str | None = setting(None, "column that is the same in all rows of an episode")
    time: str | None = setting(None, "column of the time of a step")
    terminated: str | None = setting(None, "flag of rows where the task itself ended")
    truncated: str | None = setting(None, "flag of rows where only the recording ended")
    operator: str | None = setting(None, "column of who acted")
    missing_values: Literal["drop", "hold"] | None = setting(
        None, "empty cells: drop the step, or hold the value"
    )
    episode_length: str | None = setting(
        None, "pieces that a continuous log is cut into, such as 24h or 500 rows"
    )
    action_low: tuple[float, ...] = setting((), "lower bounds: one, or one per action")
    action_high: tuple[float, ...] = setting((), "upper bounds: one, or one per action")

    @classmethod
    def further_mistakes(cls, values: Mapping[str, object]) -> list[str]:
        if bool(values.get("action_low")) == bool(values.get("action_high")):
            return []
        return ["action_low and action_high must be given together: the least and the most of an action"]

    @property
    def columns(self) -> State:
        """The mapping as a config has it; nothing where the log's own names say it."""
        lists = {"observations": self.observations, "actions": self.actions}
        told: State = {
            name: [each for text in texts for each in split_list(text)]
            for name, texts in lists.items()
            if texts
        }
        names = ("reward", "episode", "time", "terminated", "truncated", "operator")
        return told | {name: value for name in names if (value := getattr(self, name))}

    def spelled(self, folder: Folder) -> str:
        """The log as a command takes it."""
        return log_address(folder.spelled(folder.existing(self.file)))

    @property
    def fields(self) -> State:
        """The dataset fields of a config."""
        names = ("missing_values", "episode_length")
        told: State = {name: value for name in names if (value := getattr(self, name))}
        return told | ({"columns": self.columns} if self.columns else {})

    def options(self, *, bounds: bool = True) -> list[str]:
        """The same for the command line; `--option=value`, so that no name is taken for an option."""
        columns = self.columns
        words = [f"--obs={','.join(columns['observations'])}"] if self.observations else []
        words += [f"--action={','.join(columns['actions'])}"] if self.actions else []
        single = [name for name in columns if name not in ("observations", "actions")]
        words += [f"--{name}={columns[name]}" for name in single]
        words += [f"--missing-values={self.missing_values}"] if self.missing_values else []
        words += [f"--episode-length={self.episode_length}"] if self.episode_length else []
        if bounds:
            words += [f"--action-low={value:g}" for value in self.action_low]
            words += [f"--action-high={value:g}" for value in self.action_high]
        return words


class Order(ConfigModel):
    """One thing to do. What comes out lies in a folder of its own."""

    kind: ClassVar[str]
    result: ClassVar[str] = ""
    """the file that is there once it is done; without one, the words that it prints are the result"""

    def words(self, folder: Folder, out: Path) -> list[str]:
        """The words of the command, `out` being the folder of what comes out."""
        raise NotImplementedError

    def about(self) -> str:
        """What it is about, for the folder's name."""
        raise NotImplementedError


class Auto(Order):
    """Look for the best policy that the log allows."""

    kind = "auto"
    result = "auto.json"
    log: LogChoice = setting(..., "the log")
    minutes: float = setting(20.0, "minutes of processor time", gt=0, le=10_000)

    def words(self, folder: Folder, out: Path) -> list[str]:
        return [
            "auto",
            self.log.spelled(folder),
            *self.log.options(),
            f"--minutes={self.minutes:g}",
            f"--out={folder.spelled(out)}",
        ]

    def about(self) -> str:
        return Path(self.log.file).stem


class Train(Order):
    """Train with one algorithm."""

    kind = "train"
    log: LogChoice = setting(..., "the log")
    algo: str = setting(..., "the algorithm")
    steps: int = setting(20_000, "gradient steps", ge=1, le=10**9)

    def words(self, folder: Folder, out: Path) -> list[str]:
        if self.algo not in offline_algorithms():
            raise ConfigError(
                f"algo must be one of {', '.join(offline_algorithms())}, got {shown(self.algo)}"
            )
        words = ["train", f"--algo={self.algo}", f"--data={self.log.spelled(folder)}"]
        words += [*self.log.options(), f"--steps={self.steps}", f"--output-dir={folder.spelled(out)}"]
        words.append(f"--set=log_interval={max(1, self.steps // CURVE_POINTS)}")
        bounds = self.log.action_low or self.log.action_high
        return [*words, *([] if bounds else ["--set=algo_kwargs.action_bounds=data"])]

    def about(self) -> str:
        return f"{self.algo}-{Path(self.log.file).stem}"


class OverRuns(Order):
    """Something about one run or more."""

    runs: tuple[str, ...] = setting(..., "the runs", longest=MOST_RUNS)

    def named(self, folder: Folder) -> list[str]:
        """The runs as a command takes them."""
        if not self.runs:
            raise ConfigError("runs must name at least one run")
        return [folder.spelled(folder.existing(each)) for each in self.runs]

    def about(self) -> str:
        return Path(self.runs[0]).name if len(self.runs) == 1 else "runs"


class Judge(OverRuns):
    """Say how good trained policies are, by the log of the first."""

    kind = "judge"
    result = "judge.html"

    def words(self, folder: Folder, out: Path) -> list[str]:
        page, numbers = (folder.spelled(out / f"judge.{each}") for each in ("html", "json"))
        return ["judge", *self.named(folder), f"--out={page}", f"--json={numbers}"]


class Export(Order):
    """Write the policy of a run as one file, with a guard of its own log."""

    kind = "export"
    result = "policy.onnx"
    run: str = setting(..., "the run")

    def words(self, folder: Folder, out: Path) -> list[str]:
        run, file = folder.spelled(folder.existing(self.run)), folder.spelled(out / "policy.onnx")
        return ["export", f"--checkpoint={run}", f"--out={file}", "--guard=run", "--guard-set=fallback=rate"]

    def about(self) -> str:
        return Path(self.run).name


class Shadow(Order):
    """Serve a policy beside the machine: it recommends and writes down, and decides nothing."""

    kind = "serve"
    policy: str = setting(..., "the policy file")
    port: int = setting(0, "port to listen on; 0: any that is free", ge=0, le=65535)
    dial: float | None = setting(None, "position of the policy's dial", ge=0, le=1)

    def words(self, folder: Folder, out: Path) -> list[str]:
        words = ["serve", folder.spelled(folder.existing(self.policy)), f"--port={self.port}"]
        words.append(f"--decisions={folder.spelled(out / 'decisions.db')}")
        return [*words, *([] if self.dial is None else [f"--dial={self.dial:g}"])]

    def about(self) -> str:
        return Path(self.policy).stem


class Drift(Order):
    """Compare what a served policy sees with what it was trained on."""

    kind = "drift"
    result = "drift.html"
    decisions: str = setting(..., "the decision log")
    policy: str = setting(..., "the policy that decided")

    def words(self, folder: Folder, out: Path) -> list[str]:
        place, policy = (folder.spelled(folder.existing(each)) for each in (self.decisions, self.policy))
        return ["drift", place, f"--policy={policy}", f"--out={folder.spelled(out / 'drift.html')}"]

    def about(self) -> str:
        return Path(self.policy).stem


class Report(OverRuns):
    """One page about runs."""

    kind = "report"
    result = "report.html"

    def words(self, folder: Folder, out: Path) -> list[str]:
        return ["report", *self.named(folder), f"--out={folder.spelled(out / 'report.html')}"]


class Compare(OverRuns):
    """Say which of two runs is better."""

    kind = "compare"

    def words(self, folder: Folder, out: Path) -> list[str]:
        if len(self.runs) != 2:
            raise ConfigError(f"runs must be two, got {len(self.runs)}")
        return ["compare", *self.named(folder)]


ORDERS: dict[str, type[Order]] = {
    each.kind: each for each in (Auto, Train, Judge, Export, Shadow, Drift, Report, Compare)
}


def read_order(given: Facts) -> Order:
    """What a request asks for: its kind, and the settings of that kind."""
    kind, values = given.get("kind"), given.get("settings")
    if not isinstance(kind, str) or kind not in ORDERS:
        raise UserError(f"kind must be one of {', '.join(ORDERS)}, got {shown(kind)}")
    if not isinstance(values, Mapping):
        raise UserError(f"settings must be a mapping, got {shown(values)}")
    order = ORDERS[kind].build(values)
    if isinstance(order, Shadow) and not order.port:
        return order.replace(port=free_port())
    return order


def command_line(words: list[str]) -> str:
    """What a person would write for it."""
    return shlex.join(["rl-training", *words])


def offline_algorithms() -> list[str]:
    """Those that learn from a log alone."""
    return [name for name in algorithm_names() if (facts := algorithm_facts(name)) and not facts.online]


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return int(place.getsockname()[1])
