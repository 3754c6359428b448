"""The search for good settings: Optuna proposes and judges, trials are ordinary runs in worker processes.

The study is a SQLite file beside the trials. A trial that was under way when everything was killed is still
marked as running there; the next call goes on with it, so that a search has exactly as many trials as asked.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from rl_training.core.atomic import write_text_atomic
from rl_training.core.config_files import config_to_yaml
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.extras import install_hint
from rl_training.core.plain import Facts, Numbers, State
from rl_training.core.train_config import TrainConfig, parse_config
from rl_training.experiment.claims import claim
from rl_training.experiment.runs import directory_name
from rl_training.experiment.training import run_name
from rl_training.judging.selection import within_noise
from rl_training.runtime.callbacks.base import Callback
from rl_training.runtime.run import Run
from rl_training.sweeps.local import become_worker, run_local
from rl_training.sweeps.plan import SweepRun, Task
from rl_training.sweeps.run_sweep import worker_count
from rl_training.sweeps.scoring import ALIKE, chosen_metric, estimate_of, is_estimated, judged
from rl_training.sweeps.status import final_metrics
from rl_training.sweeps.sweep_config import apply_overrides
from rl_training.sweeps.tune_config import Parameter, TuneConfig, load_tune_config

if TYPE_CHECKING:
    import optuna

STUDY_FILE = "study.db"
BEST_FILE = "best.yaml"
PRUNED = "pruned"


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
    with claim(folder / "study", patience=0.0):
        study = open_study(folder, settings)
        search = Search(study, settings, folder, report)
        target = partial(work, str(folder), settings.metric, settings.mode, settings.prune)
        stopped = run_local(
            search.tasks(),
            workers=worker_count(workers),
            retries=settings.retries,
            log_dir=folder / "logs",
            target=target,
            ended=search.judge,
        )
        return search.result(stopped)


def with_metric(settings: TuneConfig) -> TuneConfig:
    """The settings with the metric that decides; trials that are judged are all judged alike."""
    base = parse_config(apply_overrides(settings.base, {}))
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
        self.numbers: dict[str, int] = {}

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

        number = self.numbers[task.name]
        metrics = final_metrics(task.runs[0].run_dir)
        value = metrics.get(self.settings.metric)
        if metrics.get("stop_reason") == PRUNED:
            self.study.tell(number, state=TrialState.PRUNED)
            self.report(f"trial {number}: pruned at step {metrics.get('global_step')}")
        elif isinstance(value, int | float):
            self.study.tell(number, value)
            self.report(f"trial {number}: {self.settings.metric} {value:.6g}")
        elif metrics.get("judge_verdict") == "refused":
            self.study.tell(number, state=TrialState.FAIL)
            self.report(f"trial {number}: not counted. {metrics.get('judge_note')}")
        else:
            self.study.tell(number, state=TrialState.FAIL)
            self.report(f"trial {number}: failed; see {self.folder / 'logs' / f'{task.name}.log'}")

    def result(self, stopped: int | None) -> TuneResult:
        """Count the trials and write the best config."""
        states = [trial.state.name.lower() for trial in self._trials()]
        counts = {state: states.count(state) for state in sorted(set(states))}
        if "complete" not in counts:
            return TuneResult(self.folder, counts, None, {}, stopped)
        best = self.study.best_trial
        overrides = self._overrides(best.params)
        config = parse_config(apply_overrides(self.settings.base, overrides))
        write_text_atomic(self.folder / BEST_FILE, config_to_yaml(config))
        return TuneResult(self.folder, counts, best.value, overrides, stopped, self._level(best.number))

    def _level(self, best: int) -> tuple[int, ...]:
        """Trials whose estimated values are within noise of the best one's."""
        if not is_estimated(self.settings.metric):
            return ()
        found = {}
        for trial in self._trials():
            run = self._task(trial.number, trial.params).runs[0]
            if (value := estimate_of([final_metrics(run.run_dir)])) is not None:
                found[trial.number] = value
        return tuple(n for n in found if n != best and within_noise(found[best], found[n]))

    def _task(self, number: int, params: Facts) -> Task:
        folder = self.folder / f"trial-{number}"
        values = apply_overrides(self.settings.base, self._overrides(params))
        config: TrainConfig = parse_config({**values, "output_dir": str(folder), "seeds": None})
        if is_estimated(self.settings.metric):
            config = judged(config)
        name = f"trial-{number}"
        self.numbers[name] = number
        return Task((SweepRun(name, config, folder / directory_name(run_name(config))),))

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


def work(folder: str, metric: str, mode: str, prune: bool, task: str, log_file: str) -> None:
    """Body of a worker process."""
    become_worker(log_file)
    import optuna

    from rl_training.sweeps.worker import perform

    study = optuna.load_study(study_name="tune", storage=storage_url(Path(folder)), pruner=median_pruner())
    run = Task.from_json(task)
    number = int(run.name.removeprefix("trial-"))
    frozen = study.get_trials(deepcopy=False)[number]
    trial = optuna.Trial(study, frozen._trial_id)
    try:
        perform(run, [PruneByEvaluation(study, trial, metric, prune)])
    except UserError as problem:
        raise SystemExit(f"error: {problem}") from None


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
