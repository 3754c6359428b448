"""The search: what a file may say, that it resumes to the exact number of trials, that bad trials are cut."""

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import optuna
import pytest

from helpers import tiny_config
from rl_training.cli import main
from rl_training.config.yaml import dump_yaml
from rl_training.core.errors import ConfigError
from rl_training.experiment.config import load_config
from rl_training.sweeps import tune
from rl_training.sweeps.plan import Task, final_metrics, run_status
from rl_training.sweeps.tune import (
    Parameter,
    PruneByEvaluation,
    TuneConfig,
    distribution,
    load_tune_config,
    median_pruner,
    open_study,
    run_tune,
)
from rl_training.sweeps.workers import perform

SPACE = {
    "algo_kwargs.learning_rate": {"low": 1e-4, "high": 1e-2, "log": True},
    "algo_kwargs.hidden_sizes": {"choices": [[8, 8], [16]]},
}


def tune_file(folder: Path, **changes: Any) -> Path:
    base = tiny_config("bc", Path("mine"), algo_kwargs={"eval_interval": 20}).to_dict()
    file = folder / "search.yaml"
    file.write_text(dump_yaml({"base": base, "space": SPACE, "trials": 6, **changes}))
    return file


def in_this_process(limit: int) -> Callable[..., None]:
    """In place of worker processes; after `limit` trials everything is killed, with one more under way."""

    def run(tasks: Iterable[Task], *, ended: Callable[[Task], None], **_: Any) -> None:
        for count, task in enumerate(tasks):
            if count == limit:
                raise SystemExit("killed")
            perform(task)
            ended(task)

    return run


def trial_states(folder: Path) -> list[str]:
    study = open_study(folder, load_tune_config(tune_file(folder)))
    return [trial.state.name for trial in study.get_trials(deepcopy=False)]


def test_a_search_keeps_what_it_compares_by(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "run_local", lambda tasks, **_: None)
    run_tune(tune_file(tmp_path), output_dir=tmp_path / "out")
    run_tune(tune_file(tmp_path, trials=9), output_dir=tmp_path / "out")
    for name, value, then in (("mode", "min", "max"), ("metric", "actor_loss", "eval_return_mean")):
        with pytest.raises(ConfigError, match=f"{name} must stay {then} in .*, got {value}"):
            run_tune(tune_file(tmp_path, **{name: value}), output_dir=tmp_path / "out")
    base = {**load_tune_config(tune_file(tmp_path)).to_dict()["base"], "seeds": [0, 1]}
    with pytest.raises(ConfigError, match=r"base must have one seed, .* got seeds \[0, 1\]"):
        run_tune(tune_file(tmp_path, base=base), output_dir=tmp_path / "new")


@pytest.mark.slow
def test_an_interrupted_search_resumes_to_exactly_its_trials(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file, out = tune_file(tmp_path), tmp_path / "out"
    monkeypatch.setattr(tune, "run_local", in_this_process(3))
    with pytest.raises(SystemExit, match="killed"):
        run_tune(file, output_dir=out)
    assert trial_states(out) == ["COMPLETE"] * 3 + ["RUNNING"]
    monkeypatch.setattr(tune, "run_local", in_this_process(100))
    lines: list[str] = []
    result = run_tune(file, output_dir=out, report=lines.append)
    assert trial_states(out) == ["COMPLETE"] * 6 and result.states == {"complete": 6}
    assert [line.partition(":")[0] for line in lines] == ["trial 3", "trial 4", "trial 5"]

    study = open_study(out, load_tune_config(file))
    values = [trial.value for trial in study.get_trials()]
    assert result.best_value == max(value for value in values if value is not None)
    assert len({trial.params["algo_kwargs.learning_rate"] for trial in study.get_trials()}) == 6
    best = load_config(out / "best.yaml")
    assert best.output_dir == "mine" and best.algo_kwargs["hidden_sizes"] in ([8, 8], [16])
    assert best.algo_kwargs["learning_rate"] == study.best_trial.params["algo_kwargs.learning_rate"]

    assert main(["tune", str(file), "-o", str(out)]) == 0, "nothing is left to do"
    assert re.search(r"trials complete +6\b", capsys.readouterr().out) and len(trial_states(out)) == 6


@pytest.mark.slow
def test_a_trial_that_was_killed_while_it_was_proposed_is_proposed_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Optuna stores one setting after the other; a kill may fall between two of them, or before the first."""
    file, out = tune_file(tmp_path, trials=3), tmp_path / "out"
    study = open_study(out, load_tune_config(file))
    study.ask()
    study.ask().suggest_float("algo_kwargs.learning_rate", 1e-4, 1e-2, log=True)
    monkeypatch.setattr(tune, "run_local", in_this_process(99))
    assert run_tune(file, output_dir=out).states == {"complete": 3}
    assert trial_states(out) == ["FAIL"] * 2 + ["COMPLETE"] * 3


def test_a_bad_trial_is_stopped_by_its_evaluations(tmp_path: Path) -> None:
    settings = load_tune_config(tune_file(tmp_path))
    study = open_study(tmp_path, settings)
    study.pruner = median_pruner()
    space = {key: distribution(value) for key, value in settings.parameters.items()}
    for _ in range(5):
        good = study.ask(space)
        good.report(0.0, 20)  # no return of Pendulum is above zero
        study.tell(good, 0.0)
    search = tune.Search(study, settings, tmp_path, lambda line: None)
    task = next(search.tasks())
    trial = optuna.Trial(study, study.get_trials()[5]._trial_id)
    perform(task, [tune.PruneByEvaluation(study, trial, "eval_return_mean", True)])
    search.judge(task)
    metrics = final_metrics(task.runs[0].run_dir)
    assert (metrics["stop_reason"], metrics["global_step"]) == ("pruned", 20)
    judged = study.get_trials()[5]
    assert judged.state.name == "PRUNED" and list(judged.intermediate_values) == [20]


def test_a_trial_that_failed_counts_and_has_no_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def end_all(tasks: Iterable[Task], *, ended: Callable[[Task], None], **_: Any) -> None:
        for task in tasks:
            assert run_status(task.runs[0].run_dir).state == "new"
            ended(task)

    monkeypatch.setattr(tune, "run_local", end_all)
    result = run_tune(tune_file(tmp_path, trials=2), output_dir=tmp_path / "out")
    assert result.states == {"fail": 2} and result.best_value is None
    assert not (tmp_path / "out" / "best.yaml").exists()


@pytest.mark.slow
def test_a_worker_process_trains_a_trial(tmp_path: Path) -> None:
    result = run_tune(tune_file(tmp_path, trials=1), output_dir=tmp_path / "out", workers=1)
    assert result.states == {"complete": 1} and result.best_value is not None
    study = open_study(tmp_path / "out", load_tune_config(tune_file(tmp_path)))
    assert list(study.get_trials()[0].intermediate_values) == [20, 40]


def test_all_mistakes_are_reported_together() -> None:
    space = {
        "algo_kwargs.gamam": {"low": 0.9, "high": 0.99},
        "algo_kwargs.batch_size": {"low": 0, "high": 64},
        "total_timesteps": {"low": 5, "high": 5},
        "seed": [1, 2],
        "algo_kwargs.learning_rate": {"choices": []},
    }
    with pytest.raises(ConfigError) as wrong:
        TuneConfig.build({"base": "td3_bc/demo", "space": space, "trials": 0})
    lines = str(wrong.value).splitlines()
    assert lines[0] == "trials must be >= 1, got 0"
    assert "algo_kwargs.gamam is not a known key (did you mean 'gamma'?)" in lines
    assert "algo_kwargs.batch_size must be >= 1, got 0" in lines
    assert "space.total_timesteps.low must be < high, got 5 and 5; or give choices" in lines
    assert "space.seed must be a mapping such as {low: 0, high: 1}, got [1, 2]" in lines
    assert any(line.startswith("space.algo_kwargs.learning_rate.choices must be a list") for line in lines)
    assert len(lines) == 6


def test_limits_keep_their_type() -> None:
    whole = distribution(Parameter(low=32, high=256, step=32))
    assert isinstance(whole, optuna.distributions.IntDistribution) and whole.step == 32
    number = distribution(Parameter(low=1e-4, high=1e-2, log=True))
    assert isinstance(number, optuna.distributions.FloatDistribution) and number.log
    named = distribution(Parameter(choices=([8, 8], 3, None)))
    assert isinstance(named, optuna.distributions.CategoricalDistribution)
    assert named.choices == ("[8, 8]", 3, None)


def test_a_study_of_another_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tune, "run_local", in_this_process(1))
    with pytest.raises(SystemExit):
        run_tune(tune_file(tmp_path), output_dir=tmp_path / "out")
    other = tune_file(tmp_path, space={"algo_kwargs.learning_rate": SPACE["algo_kwargs.learning_rate"]})
    with pytest.raises(ConfigError, match=r"another space .algo_kwargs.hidden_sizes.; give another"):
        run_tune(other, output_dir=tmp_path / "out")


def test_the_packaged_search_is_sound() -> None:
    assert load_tune_config("pendulum").trials == 20


def test_only_scheduled_evaluations_are_reported_to_the_study() -> None:
    """The closing one depends on where a trial was stopped."""
    study, trial = Mock(), Mock(number=0)
    study.get_trials.return_value = [Mock(intermediate_values={})]
    trial.should_prune.return_value = False
    watch = PruneByEvaluation(study, trial, "eval_return_mean", prune=True)
    watch.on_eval_end(Mock(global_step=5), {"eval_return_mean": 1.0}, False)
    trial.report.assert_not_called()
    watch.on_eval_end(Mock(global_step=5), {"eval_return_mean": 1.0}, True)
    trial.report.assert_called_once_with(1.0, 5)
