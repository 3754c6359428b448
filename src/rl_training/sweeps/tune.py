"""A search for good settings: Optuna proposes and judges, trials are ordinary runs in worker processes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from rl_training.config import ConfigModel, setting
from rl_training.config.run import config_to_yaml, parse_config, read_settings
from rl_training.core.errors import ConfigError, install_hint, shown
from rl_training.core.files import write_text_atomic
from rl_training.core.types import Facts, Numbers, State
from rl_training.core.types import number as as_number
from rl_training.judging.candidates import candidate_of, clearly_above
from rl_training.runs.directory import lock_run
from rl_training.runtime.callbacks import Callback, Run
from rl_training.sweeps.plan import EXAMPLE, SweepRun, Task, changed_base, final_metrics
from rl_training.sweeps.sweep import ALIKE, ESTIMATED, chosen_metric, is_estimated, judged
from rl_training.sweeps.workers import run_local, worker_count

if TYPE_CHECKING:
    import optuna

STUDY_FILE = "study.db"
BEST_FILE = "best.yaml"
PRUNED = "pruned"
TRIAL = "trial-"
EXCESS = "excess"
NOT_KEPT = 1e-3
"""Least excess of a trial that is not shown to keep its limits."""


class Parameter(ConfigModel):
    """The values one setting may take: a range, or a list of choices."""

    low: float | int | None = setting(None, "smallest value; whole numbers on both ends mean a whole number")
    high: float | int | None = setting(None, "largest value")
    log: bool = setting(False, "search on a logarithmic scale")
    step: float | int | None = setting(None, "distance between values", gt=0)
    choices: tuple[Any, ...] | None = setting(None, "values to choose from, of any kind")

    @model_validator(mode="after")
    def _is_range_or_choices(self) -> Self:
        if self.choices is not None:
            if not self.choices or self.low is not None or self.high is not None:
                raise ValueError("choices must be a list of at least one value, without low and high")
        elif self.low is None or self.high is None or self.low >= self.high:
            raise ValueError(f"low must be < high, got {self.low} and {self.high}; or give choices")
        elif self.log and (self.low <= 0 or self.step is not None):
            raise ValueError(f"low must be > 0 and step left out where log is true, got {self.low}")
        return self

    @property
    def labels(self) -> dict[str | int | float | bool | None, Any]:
        """Choices by a name that a database can hold: a list is named by its JSON."""
        return {
            json.dumps(value) if isinstance(value, list | tuple | dict) else value: value
            for value in self.choices or ()
        }

    @property
    def extremes(self) -> list[Any]:
        return [self.low, self.high] if self.choices is None else list(self.choices)


class TuneConfig(ConfigModel):
    """What is searched: trials of one run each, proposed by what earlier ones showed."""

    base: str | dict[str, object] = setting(..., "config that all trials start from: name, file or mapping")
    space: dict[str, object] = setting(..., "for each key its range {low, high, log, step} or its {choices}")
    trials: int = setting(20, "trials in all, over all calls", ge=1)
    metric: str = setting(
        "auto",
        "final metric that is compared: any of a run's, or auto (eval_return_mean with an environment, "
        "judge_score without)",
    )
    mode: Literal["max", "min"] = setting("max", "whether more or less of the metric is better")
    prune: bool = setting(True, "stop a trial whose evaluations are worse than the median of the others")
    seed: int = setting(0, "seed of the proposals", ge=0)
    retries: int = setting(1, "further attempts at a trial that crashed", ge=0)
    output_dir: str | None = setting(None, "directory of the search; null = runs/ and the name of the file")

    @classmethod
    def further_mistakes(cls, values: Mapping[str, object]) -> list[str]:
        space, base = values.get("space"), values.get("base")
        if not isinstance(space, Mapping):
            return []
        if not space:
            return ["space must name at least one setting, got {}"]
        lines: list[str] = []
        for key, given in space.items():
            try:
                parameter = parse_parameter(key, given)
            except ConfigError as error:
                lines += str(error).splitlines()
                continue
            if isinstance(base, str | Mapping):
                lines += [line for value in parameter.extremes for line in _mistakes_with(base, key, value)]
        return list(dict.fromkeys(lines))

    @property
    def parameters(self) -> dict[str, Parameter]:
        return {key: parse_parameter(key, given) for key, given in self.space.items()}


def load_tune_config(source: str | os.PathLike[str]) -> TuneConfig:
    """Read a search file, or a packaged one by its name."""
    return TuneConfig.build(read_settings(source, "tune", TuneConfig.model_fields, EXAMPLE))


def parse_parameter(key: str, given: object) -> Parameter:
    if not isinstance(given, Mapping):
        raise ConfigError(f"space.{key} must be a mapping such as {{low: 0, high: 1}}, got {shown(given)}")
    return Parameter.build(given, where=f"space.{key}")


def _mistakes_with(base: str | Mapping[str, object], key: str, value: object) -> list[str]:
    """A value the algorithm would refuse is found before the first trial, not in the tenth."""
    try:
        parse_config(changed_base(base, {key: value}))
    except ConfigError as error:
        return str(error).splitlines()
    return []


@dataclass(frozen=True)
class TuneResult:
    """How many trials ended in which way, and the best one."""

    output_dir: Path
    states: Mapping[str, int]
    best_value: float | None
    best_params: Facts
    signal: int | None = None
    level: tuple[int, ...] = ()
    """Trials that cannot be told apart from the best one by estimated values"""


def run_tune(
    source: str | os.PathLike[str],
    *,
    output_dir: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> TuneResult:
    """Search until the study has as many trials as the file says; the best config is written as YAML."""
    settings = with_metric(load_tune_config(source))
    folder = Path(output_dir or settings.output_dir or Path("runs") / f"tune-{Path(source).stem}")
    folder = Path(os.path.abspath(folder.expanduser()))
    with lock_run(folder / "study", patience=0.0):
        study = open_study(folder, settings)
        refuse_other_aim(study, settings, folder)
        search = Search(study, settings, folder, report)
        stopped = run_local(
            search.tasks(),
            workers=worker_count(workers),
            retries=settings.retries,
            log_dir=folder / "logs",
            callbacks_of=partial(pruning, str(folder), settings.metric, settings.prune),
            ended=search.judge,
        )
        return search.result(stopped)


def with_metric(settings: TuneConfig) -> TuneConfig:
    """The settings with the metric that decides; trials that are judged are all judged alike."""
    base = parse_config(changed_base(settings.base, {}))
    if base.seeds is not None:
        raise ConfigError(f"base must have one seed, a trial is one run, got seeds {list(base.seeds)}")
    metric = chosen_metric(settings.metric, {"base": base}, may_be_none=False)
    varied = [key for key in settings.space if key.rpartition(".")[2] in ALIKE]
    if is_estimated(metric) and varied:
        raise ConfigError(f"space must not vary {varied[0]} with metric {metric}: all are judged alike")
    return settings.model_copy(update={"metric": metric})


class Search:
    """Turns proposals into tasks, and what the run directories say into verdicts."""

    def __init__(
        self, study: optuna.Study, settings: TuneConfig, folder: Path, report: Callable[[str], None]
    ) -> None:
        self.study, self.settings, self.folder, self.report = study, settings, folder, report

    def tasks(self) -> Iterator[Task]:
        """Trials that were cut off, then new ones; asked for one at a time, so that each knows the last."""
        from optuna.trial import TrialState

        for trial in self.study.get_trials(deepcopy=False):
            if trial.state.name == "RUNNING" and self._is_whole(trial):
                yield self._task(trial.number, trial.params)
            elif trial.state.name == "RUNNING":
                self.study.tell(trial.number, state=TrialState.FAIL)
        distributions = {key: distribution(value) for key, value in self.settings.parameters.items()}
        while len(self._trials()) < self.settings.trials:
            proposed = self.study.ask(distributions)
            yield self._task(proposed.number, proposed.params)

    def _trials(self) -> list[optuna.trial.FrozenTrial]:
        return [trial for trial in self.study.get_trials(deepcopy=False) if self._is_whole(trial)]

    def _is_whole(self, trial: optuna.trial.FrozenTrial) -> bool:
        """Not so where the search was killed between proposing a trial and storing all of its settings."""
        return not trial.params.keys() < self.settings.parameters.keys()

    def judge(self, task: Task) -> None:
        """Tell the study how a trial ended."""
        from optuna.trial import TrialState

        number, metrics = trial_number(task), final_metrics(task.runs[0].run_dir)
        name, value = self.settings.metric, metrics.get(self.settings.metric)
        state: TrialState | None = TrialState.FAIL
        told = f"failed; see {self.folder / 'logs' / f'{task.name}.log'}"
        if metrics.get("stop_reason") == PRUNED:
            state, told = TrialState.PRUNED, f"pruned at step {metrics.get('global_step')}"
        elif self._refused(metrics):
            told = f"refused by the judge, not counted. {metrics.get('judge_note')}"
        elif isinstance(value, int | float):
            state, told = None, f"{name} {value:.6g}"  # the value decides: one that is NaN has failed
            if is_estimated(name) and (judged := candidate_of([metrics])) is not None:
                told += f", {judged.told}"
                self._constrain(number, metrics)
        self.study.tell(number, value if state is None else None, state=state)
        self.report(f"trial {number}: {told}")

    def _constrain(self, number: int, metrics: Facts) -> None:
        """Where limits are stated, only a trial that keeps them can be the best; others say how far off."""
        import optuna

        excess = as_number(metrics.get("judge_excess"))
        if metrics.get("judge_limits") is not None:
            kept = metrics["judge_limits"] == "keeps" and excess is not None
            found = excess if kept and excess is not None else max(excess or 0.0, NOT_KEPT)
            trial = self.study.get_trials(deepcopy=False)[number]
            optuna.Trial(self.study, trial._trial_id).set_constraint(EXCESS, found)

    def result(self, stopped: int | None) -> TuneResult:
        """Count the trials and write the best config."""
        states = [self._state(trial) for trial in self._trials()]
        counts = {state: states.count(state) for state in sorted(set(states))}
        kept = [
            trial
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state.name == "COMPLETE" and trial.constraints.get(EXCESS, 0.0) <= 0.0
        ]
        if not kept:
            return TuneResult(self.folder, counts, None, {}, stopped)
        best = self.study.best_trial
        overrides = self._overrides(best.params)
        config = parse_config(changed_base(self.settings.base, overrides))
        write_text_atomic(self.folder / BEST_FILE, config_to_yaml(config))
        return TuneResult(self.folder, counts, best.value, overrides, stopped, self._level(best.number))

    def _refused(self, metrics: Facts) -> bool:
        """Whether a trial has no number to be chosen by: the score alone allows for what is not known."""
        metric = self.settings.metric
        refused = is_estimated(metric) and metrics.get("judge_verdict") == "refused"
        return refused and (metric != ESTIMATED or metrics.get(ESTIMATED) is None)

    def _state(self, trial: optuna.trial.FrozenTrial) -> str:
        """How a trial ended; Optuna counts one that the judge refused among those that failed."""
        failed = trial.state.name == "FAIL"
        return "refused" if failed and self._refused(self._metrics(trial)) else trial.state.name.lower()

    def _metrics(self, trial: optuna.trial.FrozenTrial) -> Facts:
        return final_metrics(self._task(trial.number, trial.params).runs[0].run_dir)

    def _level(self, best: int) -> tuple[int, ...]:
        """Trials whose estimated values are within noise of the best one's."""
        if not is_estimated(self.settings.metric):
            return ()
        found = {
            trial.number: judged
            for trial in self._trials()
            if (judged := candidate_of([self._metrics(trial)])) is not None and not judged.out_of_question
        }
        others = [number for number in found if number != best and best in found]
        return tuple(number for number in others if not clearly_above(found[best], found[number]))

    def _task(self, number: int, params: Facts) -> Task:
        name = f"{TRIAL}{number}"
        folder = self.folder / name
        values = changed_base(self.settings.base, self._overrides(params))
        config = parse_config({**values, "output_dir": str(folder), "seeds": None})
        if is_estimated(self.settings.metric):
            config = judged(config)
        return Task((SweepRun.inside(folder, name, config),))

    def _overrides(self, params: Facts) -> State:
        """What Optuna stored, as config values."""
        known = self.settings.parameters
        missing = params.keys() ^ known.keys()
        if missing:
            raise ConfigError(
                f"{self.folder / STUDY_FILE} was made with another space ({', '.join(sorted(missing))}); "
                "give another output_dir"
            )
        return {
            key: value if known[key].choices is None else known[key].labels[value]
            for key, value in params.items()
        }


class PruneByEvaluation(Callback):
    """Reports every scheduled evaluation to the study, and stops the run when the study says so."""

    def __init__(self, study: optuna.Study, trial: optuna.Trial, metric: str, prune: bool) -> None:
        self.study, self.trial, self.metric, self.prune = study, trial, metric, prune

    def on_eval_end(self, run: Run, metrics: Numbers, scheduled: bool) -> None:
        value = metrics.get(self.metric)
        if value is None or not scheduled:
            return
        known = self.study.get_trials(deepcopy=False)[self.trial.number].intermediate_values
        if run.global_step not in known:  # steps after a checkpoint are repeated when a trial is resumed
            self.trial.report(float(value), run.global_step)
        if self.prune and self.trial.should_prune():
            run.request_stop(PRUNED)


def trial_number(task: Task) -> int:
    return int(task.name.removeprefix(TRIAL))


def pruning(folder: str, metric: str, prune: bool, task: Task) -> list[Callback]:
    """What a worker process trains a trial with."""
    import optuna

    study = optuna.load_study(study_name="tune", storage=storage_url(Path(folder)), pruner=median_pruner())
    frozen = study.get_trials(deepcopy=False)[trial_number(task)]
    return [PruneByEvaluation(study, optuna.Trial(study, frozen._trial_id), metric, prune)]


def open_study(folder: Path, settings: TuneConfig) -> optuna.Study:
    """The study of this directory, new or as it was left."""
    try:
        import optuna
    except ImportError:
        raise ConfigError(f"tune needs the optuna package: {install_hint('sweep')}") from None
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    folder.mkdir(parents=True, exist_ok=True)
    study = optuna.create_study(
        study_name="tune",
        storage=storage_url(folder),
        direction="maximize" if settings.mode == "max" else "minimize",
        load_if_exists=True,
    )
    known = len(study.get_trials(deepcopy=False))
    # Another seed for every call: a search that goes on must not propose its first points again.
    study.sampler = optuna.samplers.TPESampler(seed=settings.seed + known)
    return study


def refuse_other_aim(study: optuna.Study, settings: TuneConfig, folder: Path) -> None:
    """Trials of one search are compared by one number: a study keeps what it began with."""
    for name, wanted in (("metric", settings.metric), ("mode", settings.mode)):
        then = study.user_attrs.get(name, wanted)
        if then != wanted:
            raise ConfigError(
                f"{name} must stay {then} in {folder}, got {wanted}; give another output_dir to search anew"
            )
        study.set_user_attr(name, wanted)


def storage_url(folder: Path) -> str:
    return f"sqlite:///{folder / STUDY_FILE}"


def median_pruner() -> optuna.pruners.BasePruner:
    import optuna

    return optuna.pruners.MedianPruner(n_startup_trials=5)


def distribution(parameter: Parameter) -> optuna.distributions.BaseDistribution:
    """The same limits in Optuna's words."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if parameter.choices is not None:
        return CategoricalDistribution(list(parameter.labels))
    low, high, step = parameter.low, parameter.high, parameter.step
    assert low is not None and high is not None  # the parameter's own check
    if isinstance(low, int) and isinstance(high, int):
        return IntDistribution(low, high, log=parameter.log, step=int(step or 1))
    return FloatDistribution(low, high, log=parameter.log, step=step)
