"""Sweeps and searches without an environment choose by what a log says, or say why they cannot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from judging_problems import lqr_log
from rl_training.config.run import TrainConfig, load_config
from rl_training.core.errors import ConfigError
from rl_training.judging.candidates import candidate_of, ranking, tell_broken, ties
from rl_training.report.compare import estimated_verdict
from rl_training.sweeps import tune
from rl_training.sweeps.plan import SweepConfig, expand, final_metrics, plan_sweep, run_status
from rl_training.sweeps.sweep import by_the_judge, chosen_metric, judged, told_ranking
from rl_training.sweeps.tune import TuneConfig
from rl_training.sweeps.workers import perform


def write_log(folder: Path, episodes: int = 30) -> Path:
    log, path = lqr_log(episodes=episodes), folder / "log.npz"
    named = {"observations": log.obs, "next_observations": log.next_obs, "actions": log.actions}
    ends = {"terminals": log.dones, "timeouts": log.truncations}
    np.savez(path, **named, rewards=log.rewards, **ends)
    return path


def base(path: Path, **settings: Any) -> dict[str, Any]:
    kwargs = {"hidden_sizes": [8], "batch_size": 16, "compile": False, "dataset_path": str(path)}
    kwargs |= {"action_low": [-1.0], "action_high": [1.0], "judge_updates": 10, "judge_gamma": 0.9}
    values: dict[str, Any] = {"algo": "td3_bc", "total_timesteps": 5, "eval_episodes": 0}
    return {**values, "algo_kwargs": {**kwargs, **settings}}


def judgement(value: float, noise: float) -> dict[str, float]:
    bounds = {"judge_low": value - noise, "judge_high": value + noise}
    return {"judge_value": value, "judge_score": value - noise, **bounds}


def config(path: Path, **settings: Any) -> TrainConfig:
    return TrainConfig(**base(path, **settings))


def test_the_metric_follows_from_what_can_score(tmp_path: Path) -> None:
    own = config(write_log(tmp_path))
    simulated = own.replace(env_id="Pendulum-v1")
    for metric, runs, wanted in (
        ("auto", {"a": simulated}, "eval_return_mean"),
        ("auto", {"a": own, "b": own}, "judge_score"),
        ("judge_value", {"a": own}, "judge_value"),
        ("critic_loss", {"a": own}, "critic_loss"),
        ("none", {"a": own}, None),
    ):
        assert chosen_metric(metric, runs, may_be_none=True) == wanted


def test_where_nothing_can_score_it_is_refused_before_the_first_run(tmp_path: Path) -> None:
    path = write_log(tmp_path)
    own = config(path)
    (tmp_path / "few").mkdir()
    few = config(write_log(tmp_path / "few", episodes=5))
    torn = config(path, discount_by_time=True)
    online = TrainConfig(algo="sac", env_id="Pendulum-v1", total_timesteps=1)
    for metric, runs, reason in (
        ("eval_return_mean", {"a": own}, "a has none: give env_id"),
        ("auto", {"a": config(path, judge_at_end=False)}, "judge_at_end: false"),
        ("auto", {"a": own, "b": config(path, judge_gamma=0.5)}, "judge_gamma differs"),
        ("auto", {"a": own, "b": config(path, dataset_seed=3)}, "dataset_seed differs"),
        ("auto", {"a": few}, "5 episodes are fewer than 20"),
        ("auto", {"a": torn}, "discount"),
        ("auto", {"a": config(tmp_path / "gone.npz")}, "gone.npz"),
        ("judge_score", {"a": online}, "learns from an environment"),
    ):
        with pytest.raises(ConfigError, match=reason):
            chosen_metric(metric, runs, may_be_none=True)


def test_a_sweep_ranks_by_the_judge_and_calls_a_tie_a_tie(tmp_path: Path) -> None:
    grid = {"algo_kwargs.alpha": [1.0, 2.0, 3.0, 4.0]}
    sweep = SweepConfig.build({"base": base(write_log(tmp_path)), "grid": grid})
    configs = {name: judged(each) for name, each in expand(sweep).items()}
    tasks = plan_sweep(sweep, tmp_path / "sweep", configs)
    runs = [run for task in tasks for run in task.runs]
    perform(tasks[0])
    metrics = final_metrics(runs[0].run_dir)
    assert metrics["judge_value"] is not None  # 5 updates: judged because it was asked for
    assert run_status(runs[0].run_dir).shown_return.endswith(f" estimated, {metrics['judge_verdict']}")
    words = {9.0: "better", 9.5: "worse", 1.0: "better", 99.0: "refused"}
    # the order is that of the score, which is another than that of the value
    for run, value in zip(runs, words, strict=True):
        told = {
            "judge_value": value,
            "judge_low": value - 1,
            "judge_high": value + 1,
            "judge_score": None if words[value] == "refused" else -abs(value - 9.0),
            "judge_verdict": words[value],
        }
        run.run_dir.mkdir(parents=True, exist_ok=True)
        summary = {"stop_reason": "finished", "metrics": {**metrics, **told}}
        (run.run_dir / "summary.json").write_text(json.dumps(summary))
    names = [run.run_dir.parent.name for run in runs]
    assert told_ranking(runs, "judge_score", tmp_path) == (
        f"by the judge's score, estimated, not measured: {names[0]} (better, score 0); a tie within noise "
        f"with {names[1]}; refused by the judge: {names[3]} (1 of 1 run)"
    )
    assert told_ranking(runs[3:], "judge_score", tmp_path) == (
        f"no ranking: the judge refused {names[3]} (1 of 1 run); judgement.json in each run says more"
    )


@pytest.mark.slow
def test_a_search_chooses_by_the_judge(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    space = {"algo_kwargs.alpha": {"low": 1.0, "high": 3.0}}
    given = {"base": base(write_log(tmp_path)), "space": space, "trials": 2}
    settings = tune.with_metric(TuneConfig.build(given))
    assert settings.metric == "judge_score"
    told: list[str] = []
    search = tune.Search(
        tune.open_study(tmp_path / "tune", settings), settings, tmp_path / "tune", told.append
    )
    judgements = []
    for task in search.tasks():
        perform(task)
        run_dir = task.runs[0].run_dir
        summary = json.loads((run_dir / "summary.json").read_text())
        # What the judge found is replaced by numbers that are known here.
        value = 9.0 - len(judgements)
        known = {
            "judge_value": value,
            "judge_low": value - 2,
            "judge_high": value + 2,
            "judge_score": value - 2,
        }
        summary["metrics"] |= {**known, "judge_verdict": "better"}
        (run_dir / "summary.json").write_text(json.dumps(summary))
        whole = json.loads((run_dir / "judgement.json").read_text())
        judgements.append((whole["settings"], whole["behaviour"]["value"]))
        search.judge(task)
    assert judgements[0] == judgements[1]  # the same settings, resamples and episodes
    result = search.result(None)
    assert (result.best_value, result.level) == (7.0, (1,))
    assert told[0] == "trial 0: judge_score 7, better"


@pytest.mark.parametrize("metric", ["judge_score", "judge_value"])
def test_a_refused_trial_never_wins_and_is_counted_as_refused(
    metric: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    space = {"algo_kwargs.alpha": {"low": 1.0, "high": 3.0}}
    given = {"base": base(write_log(tmp_path)), "space": space, "trials": 2, "metric": metric}
    settings, told = tune.with_metric(TuneConfig.build(given)), list[str]()
    found = {"trial-0": {**judgement(5.0, 1.0), "judge_verdict": "better"}}
    found["trial-1"] = {**judgement(99.0, 1.0), "judge_score": None, "judge_verdict": "refused"}
    monkeypatch.setattr(tune, "final_metrics", lambda run_dir: found[run_dir.parent.name])
    place = tmp_path / "tune"
    search = tune.Search(tune.open_study(place, settings), settings, place, told.append)
    for task in search.tasks():
        search.judge(task)
    result = search.result(None)
    assert result.best_value == found["trial-0"][metric] and result.level == ()
    assert result.states == {"complete": 1, "refused": 1}
    assert told[1].startswith("trial 1: refused by the judge, not counted.")


def test_a_refused_trial_counts_by_its_score_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The score allows for what the log does not know; the verdict is told beside it."""
    pytest.importorskip("optuna")
    space = {"algo_kwargs.alpha": {"low": 1.0, "high": 3.0}}
    given = {"base": base(write_log(tmp_path)), "space": space, "trials": 2}
    settings, told = tune.with_metric(TuneConfig.build(given)), list[str]()
    found = {"trial-0": {**judgement(5.0, 1.0), "judge_verdict": "better"}}
    found["trial-1"] = {**judgement(99.0, 1.0), "judge_score": 4.5, "judge_verdict": "refused"}
    monkeypatch.setattr(tune, "final_metrics", lambda run_dir: found[run_dir.parent.name])
    search = tune.Search(tune.open_study(tmp_path / "tune", settings), settings, tmp_path, told.append)
    for task in search.tasks():
        search.judge(task)
    result = search.result(None)
    assert (result.best_value, result.level, result.states) == (4.5, (), {"complete": 2})
    assert told[1] == "trial 1: judge_score 4.5, refused"


@pytest.mark.parametrize(("mode", "best"), [("max", 9.0), ("min", 2.0)])
def test_a_search_goes_the_way_it_was_told(
    mode: str, best: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    space = {"algo_kwargs.alpha": {"low": 1.0, "high": 3.0}}
    given = {"base": base(write_log(tmp_path)), "space": space, "trials": 3, "metric": "judge_value"}
    settings = tune.with_metric(TuneConfig.build({**given, "mode": mode}))
    values = {f"trial-{number}": value for number, value in enumerate((5.0, 9.0, 2.0))}

    def told(run_dir: Path) -> dict[str, Any]:
        return {**judgement(values[run_dir.parent.name], 1.0), "judge_verdict": "better"}

    monkeypatch.setattr(tune, "final_metrics", told)
    search = tune.Search(tune.open_study(tmp_path / "tune", settings), settings, tmp_path / "tune", print)
    for task in search.tasks():
        search.judge(task)
    assert search.result(None).best_value == best


def test_a_sweep_with_an_environment_names_the_highest_mean(tmp_path: Path) -> None:
    grid = {"algo_kwargs.alpha": [1.0, 2.0]}
    sweep = SweepConfig.build({"base": base(write_log(tmp_path)), "grid": grid, "seeds": [0, 1]})
    runs = [run for task in plan_sweep(sweep, tmp_path / "sweep") for run in task.runs]
    for run, value in zip(runs, (-30.0, -10.0, -5.0, -25.0), strict=True):
        run.run_dir.mkdir(parents=True)
        summary = {"stop_reason": "finished", "metrics": {"eval_return_mean": value}}
        (run.run_dir / "summary.json").write_text(json.dumps(summary))
    told = told_ranking(runs, "eval_return_mean", tmp_path)
    assert told.startswith(f"highest mean eval_return_mean: {runs[2].run_dir.parent.name} (-15); how sure")
    assert told_ranking(runs, "eval_nothing", tmp_path) == "no ranking: no run has eval_nothing"


def test_a_search_must_not_vary_how_it_is_judged(tmp_path: Path) -> None:
    space = {"algo_kwargs.judge_gamma": {"low": 0.5, "high": 0.9}}
    with pytest.raises(ConfigError, match="judged alike"):
        tune.with_metric(TuneConfig.build({"base": base(write_log(tmp_path)), "space": space}))
    with pytest.raises(ConfigError, match="5 episodes are fewer than 20"):
        plain = {"algo_kwargs.alpha": {"low": 1.0, "high": 2.0}}
        tune.with_metric(TuneConfig.build({"base": base(write_log(tmp_path, 5)), "space": plain}))


def test_what_breaks_a_limit_comes_last_and_is_not_to_be_taken(tmp_path: Path) -> None:
    told = {"judge_verdict": "better"}
    metrics = {
        "wild": {**judgement(9.0, 1.0), **told, "judge_limits": "breaks"},
        "odd": {**judgement(8.0, 1.0), **told, "judge_limits": "cannot tell"},
        "safe": {**judgement(2.0, 1.0), **told, "judge_limits": "keeps"},
    }
    found = {name: candidate for name, each in metrics.items() if (candidate := candidate_of([each]))}
    assert ranking(found) == ["safe", "odd", "wild"] and ties(found) == ()
    assert found["safe"].told == "better, keeps its limits"
    assert tell_broken(found) == "odd (limits: cannot tell), wild (breaks a limit)"
    mixed = candidate_of([metrics["safe"], metrics["wild"]])
    assert mixed is not None and mixed.limits == "breaks" and mixed.out_of_question
    unknown = candidate_of([metrics["safe"], {**judgement(2.0, 1.0), **told}])
    assert unknown is not None and unknown.limits == "cannot tell"
    runs = {name: [each] for name, each in metrics.items()}
    assert by_the_judge(runs) == (
        "by the judge's score, estimated, not measured: safe (better, keeps its limits, score 1); "
        "not to be taken: odd (limits: cannot tell), wild (breaks a limit)"
    )
    del runs["safe"]
    assert by_the_judge(runs).startswith("none can be taken, limits are not kept: odd")
    assert estimated_verdict(found["safe"], found["wild"]) == (
        "A is to be taken, whatever the other earns: A keeps its limits; B breaks a limit."
    )
    assert estimated_verdict(found["odd"], found["wild"]).startswith("Neither is to be taken")


def test_the_best_trial_keeps_its_limits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    space = {"algo_kwargs.penalty.wear": {"low": 0.1, "high": 10.0, "log": True}}
    limits = {"costs": {"wear": "action_0 ** 2"}, "limits": {"wear": 0.05}}
    given = {"base": base(write_log(tmp_path), **limits), "space": space, "trials": 3}
    found = {
        "trial-0": {**judgement(9.0, 1.0), "judge_limits": "breaks", "judge_excess": 2.0},
        "trial-1": {**judgement(2.0, 1.0), "judge_limits": "keeps", "judge_excess": -0.5},
        "trial-2": {**judgement(8.0, 1.0), "judge_limits": "cannot tell", "judge_excess": 0.0},
    }
    for each in found.values():
        each["judge_verdict"] = "better"
    lines: list[str] = []
    settings = tune.with_metric(TuneConfig.build(given))
    study = tune.open_study(tmp_path, settings)
    search = tune.Search(study, settings, tmp_path, lines.append)
    monkeypatch.setattr(tune, "final_metrics", lambda run_dir: found[run_dir.parent.name])
    tasks = list(search.tasks())
    for task in tasks[:1]:
        search.judge(task)
    assert search.result(None).best_value is None
    for task in tasks[1:]:
        search.judge(task)
    result = search.result(None)
    assert result.best_value == 1.0 and result.level == ()
    assert lines[0].endswith("judge_score 8, better, breaks a limit")
    weight = result.best_params["algo_kwargs.penalty.wear"]
    best = config_of(tmp_path / "best.yaml")
    assert best["algo_kwargs"]["penalty"] == {"wear": weight}


def config_of(path: Path) -> dict[str, Any]:
    return load_config(path).to_dict()
