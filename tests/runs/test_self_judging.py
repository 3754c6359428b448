"""A run without an environment judges its policy by the log when it ends."""

from __future__ import annotations

import json
import math
import os
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from helpers import train
from judging_problems import lqr_log
from rl_training.cli.train import report
from rl_training.config import ConfigModel
from rl_training.config.run import TrainConfig
from rl_training.core.checkpoints import load_run_state
from rl_training.core.errors import ConfigError
from rl_training.data import TransitionDataset
from rl_training.judging.verdict import CostJudgement
from rl_training.report.pages import write_report
from rl_training.runs import judge as run_judging
from rl_training.runs.export import export_checkpoint
from rl_training.runs.resume import resume_training
from rl_training.runs.tracking import read_metrics
from rl_training.runtime.callbacks import TrainResult
from rl_training.runtime.progress import ProgressDisplay

FAST: dict[str, Any] = {"judge_at_end": True, "judge_updates": 20, "judge_gamma": 0.9}


def config(folder: Path, steps: int = 20, **settings: Any) -> TrainConfig:
    kwargs = {"hidden_sizes": [8], "batch_size": 16, "compile": False, **FAST, **settings}
    kwargs |= {"action_low": [-1.0], "action_high": [1.0]}
    values: dict[str, Any] = {"algo": "td3_bc", "seed": 3, "total_timesteps": steps, "eval_episodes": 0}
    return TrainConfig(**values, output_dir=str(folder), algo_kwargs=kwargs)


def judged(folder: Path, log: TransitionDataset | None = None, **settings: Any) -> TrainResult:
    return train(config(folder, **settings), dataset=log or lqr_log(episodes=60))


def numbers(result: TrainResult) -> dict[str, Any]:
    return {name: result.metrics[name] for name in run_judging.NOT_JUDGED}


def test_the_judgement_is_in_every_file_of_the_run(tmp_path: Path) -> None:
    result = judged(tmp_path)
    metrics = result.metrics
    assert metrics["judge_low"] <= metrics["judge_value"] <= metrics["judge_high"]
    assert metrics["judge_verdict"] in ("better", "worse", "indistinguishable", "refused")
    assert metrics["judge_episodes"] == 60
    assert metrics["judge_note"].endswith("60 episodes of the training data itself, not measured.")
    summary = json.loads((result.run_dir / "summary.json").read_text())["metrics"]
    assert summary["judge_value"] == metrics["judge_value"] and summary["eval_return_mean"] is None
    last = [row for row in read_metrics(result.run_dir) if row["kind"] == "eval"][-1]
    assert (last["step"], last["judge_value"]) == (20, metrics["judge_value"])
    assert load_run_state(result.checkpoint_path)["results"]["judge_note"] == metrics["judge_note"]
    whole = json.loads((result.run_dir / "judgement.json").read_text())
    assert whole["policies"][0]["value"] == metrics["judge_value"]
    assert (whole["settings"]["gamma"], whole["settings"]["seed"]) == (0.9, 0)


def test_the_terminal_says_that_it_is_estimated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report(judged(tmp_path), quiet=False)
    shown = capsys.readouterr().out
    assert "estimated value [90 %]" in shown and "estimated value of the logged behaviour" in shown
    assert "not measured." in " ".join(shown.split())


@pytest.mark.parametrize(
    ("share", "rows", "episodes", "where"),
    [
        (0.0, 20_000, 60, "of the training data itself"),
        (0.5, 20_000, 30, "held out of training"),
        (0.3, 20_000, 60, "of the training data itself"),  # 18 are fewer than the 20 a judgement needs
        (0.5, 205, 20, "held out of training"),
    ],
)
def test_which_episodes_judge(tmp_path: Path, share: float, rows: int, episodes: int, where: str) -> None:
    metrics = judged(tmp_path, validation_share=share, judge_rows=rows).metrics
    assert metrics["judge_episodes"] == episodes and where in metrics["judge_note"]


def test_logged_rows_are_those_of_the_log_whatever_is_trained_on(tmp_path: Path) -> None:
    log = lqr_log(episodes=30, shift=5.0)
    plain = numbers(judged(tmp_path / "plain", log))
    units = {"normalize_observations": True, "reward_scale": 9.0, "reward_clip": 0.1, "n_step": 2}
    other = judged(tmp_path / "other", log, **units)
    assert other.metrics["judge_behaviour"] == pytest.approx(plain["judge_behaviour"], rel=1e-6)


def test_auto_judges_only_what_is_trained_longer_than_judging_takes(tmp_path: Path) -> None:
    for steps, is_judged in ((19, False), (20, True)):
        result = judged(tmp_path / f"{steps}", steps=steps, judge_at_end="auto")
        assert (result.metrics["judge_value"] is not None) == is_judged
        told = "19 updates are fewer than the 20 of a judgement" in result.metrics["judge_note"]
        assert told != is_judged


def test_off_and_with_an_environment_nothing_is_said(tmp_path: Path) -> None:
    assert "judge_value" not in judged(tmp_path, judge_at_end=False).metrics
    simulated = config(tmp_path, judge_at_end="auto").replace(env_id="Pendulum-v1")
    log = TransitionDataset(
        np.zeros((40, 3)), np.zeros((40, 1)), np.zeros(40), np.zeros((40, 3)), np.arange(40) % 2
    )
    assert "judge_value" not in train(simulated, dataset=log).metrics


def test_why_it_was_not_judged_is_said(tmp_path: Path) -> None:
    log = lqr_log(episodes=30)
    torn = log.select_rows(torch.arange(100))
    assert "not judged: a judgement cannot be computed on" in judged(tmp_path, torn).metrics["judge_note"]


@pytest.mark.slow
def test_a_resumed_run_judges_as_one_that_was_not_interrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = lqr_log(episodes=30)
    whole = judged(tmp_path / "whole", log)
    half = judged(tmp_path / "half", log, steps=10)
    resumed = resume_training(half.run_dir, total_timesteps=20, dataset=log, quiet=True)
    assert numbers(resumed) == numbers(whole)
    monkeypatch.setattr(run_judging, "judge_policies", None)  # would raise
    again = resume_training(half.run_dir, dataset=log, quiet=True)
    assert numbers(again) == numbers(whole)


def test_a_signal_while_judging_saves_and_leaves_it_to_the_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = lqr_log(episodes=30)

    def interrupted(*_: object, on_progress: Any, **__: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        on_progress("values", 1, 2)

    with monkeypatch.context() as patched:
        patched.setattr(run_judging, "judge_policies", interrupted)
        stopped = judged(tmp_path, log)
    assert (stopped.metrics["signal"], stopped.metrics["stop_reason"]) == (2, "signal 2")
    assert stopped.metrics["judge_value"] is None and stopped.checkpoint_path is not None
    resumed = resume_training(stopped.run_dir, dataset=log, quiet=True)
    assert resumed.metrics["judge_value"] is not None and resumed.metrics["signal"] is None


@pytest.mark.slow
def test_stacked_seeds_are_judged_together_and_as_each_would_be_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log, calls, judge = lqr_log(episodes=30), [], run_judging.judge_policies

    def counted(policies: Any, *arguments: Any, **settings: Any) -> Any:
        calls.append(len(policies))
        return judge(policies, *arguments, **settings)

    monkeypatch.setattr(run_judging, "judge_policies", counted)
    both = train(config(tmp_path / "both").replace(seeds=[3, 4]), dataset=log)
    alone = judged(tmp_path / "alone", log)
    assert calls == [2, 1]
    first, second = both.members
    for name in run_judging.NUMBERS:
        if alone.metrics[name] is not None:
            assert first.metrics[name] == pytest.approx(alone.metrics[name], rel=1e-3, abs=1e-4)
    values = [first.metrics["judge_value"], second.metrics["judge_value"]]
    assert both.metrics["judge_value"] == pytest.approx(sum(values) / 2)
    assert len(json.loads((second.run_dir / "judgement.json").read_text())["policies"]) == 1


def test_every_seed_of_a_stack_is_told_its_own_judgement(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number in the judgement of all is its number in the stack; each file holds one policy."""
    judge, given = run_judging.judge_policies, list[list[np.ndarray]]()

    def numbered(policies: Any, *arguments: Any, **settings: Any) -> Any:
        given.append([each.predict(np.ones((1, 1), np.float32)) for each in policies.values()])
        found = judge(policies, *arguments, **settings)
        judged = tuple(
            replace(each, value=10.0 * index, score=-10.0 * index)
            for index, each in enumerate(found.policies)
        )
        return replace(found, policies=judged)

    monkeypatch.setattr(run_judging, "judge_policies", numbered)
    both = train(config(tmp_path).replace(seeds=[3, 4]), dataset=lqr_log(episodes=30))
    ((first, second),) = given
    assert (first != second).any()  # two policies were judged, not one twice
    for index, member in enumerate(both.members):
        whole = json.loads((member.run_dir / "judgement.json").read_text())
        (only,) = whole["policies"]
        assert (member.metrics["judge_value"], only["value"], only["name"]) == (
            10.0 * index,
            10.0 * index,
            str(index),
        )


def test_settings_out_of_bounds_are_refused() -> None:
    from rl_training.config.run import SelfJudgingFields

    assert issubclass(SelfJudgingFields, ConfigModel)
    for wrong in ({"judge_gamma": 1.0}, {"judge_rows": 0}, {"judge_updates": 0}, {"judge_at_end": "yes"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            SelfJudgingFields.build(wrong)


def test_the_judgement_shows_how_far_it_is_and_leaves_the_run_on_the_display(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[Any, ...]] = []
    monkeypatch.setattr(ProgressDisplay, "stage", lambda self, *told: shown.append(told))
    monkeypatch.setattr(ProgressDisplay, "update", lambda self, step, **_: shown.append(("steps", step)))
    judged(tmp_path)
    names = [name for name, *_ in shown]
    stages = [name for name in dict.fromkeys(names) if name.startswith("judging")]
    assert stages == ["judging (values)", "judging (dynamics)", "judging (policies)"]
    assert ("judging (values)", 10, 20) in shown and ("judging (policies)", 1, 1) in shown
    assert shown[names.index("judging (values)") - 1] == shown[-1] == ("steps", 20)


def test_the_card_of_a_policy_without_environment_speaks_of_the_log(tmp_path: Path) -> None:
    export_checkpoint(judged(tmp_path).run_dir, tmp_path / "p.safetensors")
    card = (tmp_path / "p.safetensors.md").read_text()
    assert "raw as they stand in the log" in card and "in the log's units" in card
    assert "environment" not in card.partition("## Training")[0] and "`None`" not in card


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:limits.*nothing like this log can break it")
def test_costs_and_limits_are_judged_with_the_run_and_travel_with_it(tmp_path: Path) -> None:
    """Uniform actions: a^2 is a third on average; a limit of 2 keeps everybody, as far as it can be told."""
    log = lqr_log(episodes=60)
    limits = {"costs": {"wear": "action_0 ** 2"}, "limits": {"wear": 2.0}, "penalty": {"wear": 0.1}}
    result = judged(tmp_path, log, **limits)
    metrics = result.metrics
    assert metrics["judge_limits"] in ("keeps", "cannot tell") and metrics["judge_excess"] is not None
    told = metrics["judge_costs"]["wear"]
    assert told["limit"] == 2.0 and told["per"] == "step" and told["outcome"] == metrics["judge_limits"]
    assert "the limit of wear, 2 per step" in metrics["judge_note"]
    summary = json.loads((result.run_dir / "summary.json").read_text())
    assert summary["metrics"]["judge_costs"]["wear"] == told
    logged = summary["dataset"]["costs"]["wear"]
    assert logged["per_step"] == pytest.approx(1 / 3, abs=0.05) and logged["episodes_within"] == 1.0
    kept = json.loads((result.run_dir / "judgement.json").read_text())
    assert kept["policies"][0]["costs"][0]["name"] == "wear"
    card = export_checkpoint(result.run_dir, tmp_path / "policy.safetensors").with_suffix(".safetensors.md")
    text = card.read_text()
    assert (
        "cost of the data: `wear` |" in text and "limit 2 per step, which 100% of the episodes kept" in text
    )
    assert "the limit of wear" in text
    page = write_report([tmp_path], tmp_path / "report.html").read_text()
    assert "Costs and limits" in page and "2 per step" in page
    # a judgement afterwards knows the run's own limits, unless others are given
    quick = {"updates": 20, "model_rollouts": False, "importance": False, "members": 2}
    own = rl_training.judge(result.run_dir, log, **quick)
    assert own.policies[0].costs[0].limit == 2.0
    other = rl_training.judge(result.run_dir, log, limits={"wear": "1 per episode"}, **quick)
    assert (other.policies[0].costs[0].limit, other.policies[0].costs[0].per) == (1.0, "episode")


def test_a_cost_without_an_upper_end_is_none_in_files() -> None:
    endless = CostJudgement("wear", "step", 0.0, 0.0, math.inf, 2.0, "cannot tell")
    told = run_judging.told_costs(SimpleNamespace(costs=(endless,), limits="cannot tell", excess=math.inf))
    assert told["judge_costs"]["wear"] == {
        **{"value": 0.0, "low": 0.0, "high": None, "limit": 2.0},
        **{"per": "step", "outcome": "cannot tell"},
    }
    assert (told["judge_limits"], told["judge_excess"]) == ("cannot tell", None)
    assert run_judging.told_costs(SimpleNamespace(costs=(), limits=None, excess=None)) == {}
