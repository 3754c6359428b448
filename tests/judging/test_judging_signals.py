"""Policies that are asked with signals under judgement: by a log of them, and inside a model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from judging_problems import small
from rl_training.algorithms.recipe import get_recipe
from rl_training.config.run import TrainConfig
from rl_training.core.errors import DataError, UserError
from rl_training.core.over_log import rows_since_start
from rl_training.core.signals import Program, Signals
from rl_training.core.spaces import Spaces, unit_spaces
from rl_training.data.info import DataInfo
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.read import read_log
from rl_training.judging import judge
from rl_training.judging.log import JudgedLog, Scale
from rl_training.judging.model import FollowedSignals
from rl_training.judging.policies import JudgedPolicy, actions_in_the_log, asked_by_log, rollout_actions
from rl_training.policies.files import load_policy
from rl_training.policies.inputs import SignalMemory
from rl_training.policies.opened import DeployedPolicy
from rl_training.policies.policy import Policy
from rl_training.runs.export import export_policy

PROGRAM = Program(("x", "lags(a, 2)", "y", "diff(y)", "mean(x, 3)"), ("x", "y"), ("a",))
SPACES = Spaces(2, (-1.0,), (1.0,))
SHORT = {"gamma": 0.9, "hidden_sizes": (16,), "members": 2, "updates": 60}


def policy_of(*texts: str, rate: float | None = None) -> Policy:
    recipe = get_recipe("sac")
    program = Program(texts, ("x", "y"), ("a",))
    config = recipe.settings.build({"hidden_sizes": [4]})
    learner = recipe.build_learner(config, unit_spaces(program.width, 1), seed=0, device=torch.device("cpu"))
    learner.policy.memory = SignalMemory.of(Signals(program, (0.0,), () if rate is None else (rate,)))
    learner.policy.set_units(SPACES)
    found: Policy = learner.policy.snapshot()
    return found


def test_imagined_signals_are_those_of_a_log_of_what_was_imagined() -> None:
    rng = np.random.default_rng(0)
    columns, actions = (rng.normal(size=(6, 1, width)).astype(np.float32) for width in (2, 1))
    starts = rows_since_start(np.arange(6) == 5)
    wanted = PROGRAM.over_log(columns[:, 0], actions[:, 0], starts, [0.25])
    scale = Scale(np.full(6, 0.5, np.float32), np.full(6, 2.0, np.float32))
    log: Any = SimpleNamespace(obs_scale=scale)
    followed = FollowedSignals(Signals(PROGRAM, (0.25,)), log, wanted[:1])
    for step in range(1, 6):
        predicted = rng.normal(size=(1, 1, 6)).astype(np.float32)  # of which the columns alone count
        predicted[0, 0, [0, 3]] = scale.apply(wanted[step : step + 1])[0, [0, 3]]
        found = followed.follow(torch.from_numpy(predicted), actions[step - 1])
        np.testing.assert_allclose(scale.undo(found[0].numpy())[0], wanted[step], atol=1e-5)


def test_a_policy_is_asked_with_its_own_of_the_signals_of_a_log() -> None:
    info = DataInfo("log", signals=Signals(PROGRAM, (0.0,)), observation_names=PROGRAM.names)
    rows = np.random.default_rng(0).normal(size=(5, 6)).astype(np.float32)
    own, limited = policy_of("y", "lag(a)"), policy_of("y", "lag(a)", rate=0.05)
    for policy in (own, limited):
        asked: Any = asked_by_log("p", policy, info)
        np.testing.assert_array_equal(asked.predict(rows), policy.act(rows[:, [3, 1]]))
        assert asked.spaces.obs_dim == 6 and asked.has_distribution == (policy is own)
    assert np.abs(limited.act(rows[:, [3, 1]])[:, 0] - rows[:, 1].clip(-1, 1)).max() <= 0.05 + 1e-6
    with pytest.raises(DataError, match=r"policy p is asked with lag\(a, 3\), which log is read without"):
        asked_by_log("p", policy_of("y", "lag(a, 3)"), info)
    with pytest.raises(DataError, match=r'is read without them: do so \(--obs "y, lag\(a\)"\)'):
        asked_by_log("p", own, DataInfo("log"))


def file_of(policy: Policy, folder: Path, suffix: str) -> DeployedPolicy:
    state: Any = {
        "config": TrainConfig(algo="sac", env_id="Toy-v0", total_timesteps=1, output_dir=".").to_dict(),
        **{"algo": "sac", "algo_class": "SAC", "dataset": None, "versions": {}, "results": {}},
        **{"counters": {"global_step": 0, "gradient_steps": 0}, "reference": None},
    }
    export_policy(policy, state, folder / f"policy{suffix}")
    opened = load_policy(folder / f"policy{suffix}")
    assert isinstance(opened, DeployedPolicy)
    return opened


def log_with(*texts: str) -> TransitionDataset:
    rng = np.random.default_rng(1)
    rows = {name: rng.uniform(-1, 1, size=160).astype(np.float32) for name in ("x", "y", "a", "r")}
    rows["episode"] = np.arange(160) // 8
    rows["r"] = -((rows["x"] - rows["a"]) ** 2)
    return read_log(rows, observations=list(texts), actions="a", reward="r", episode="episode")


PAST = ("x", "lags(a, 2)", "mean(x, 3)", "y", "sum(y, -1, 1)")


def policy_by(data: TransitionDataset, rate: float | None = None) -> Policy:
    """One whose past begins as that of the log."""
    assert data.info.signals is not None
    policy = policy_of("mean(x, 3)", "lag(a)", "sum(y, -1, 1)", "lag(a, 2)", rate=rate)
    assert isinstance(policy.memory, SignalMemory)
    signals = replace(policy.memory.signals, first_action=data.info.signals.first_action)
    policy.memory = SignalMemory.of(signals)
    policy.set_units(SPACES)
    return policy


@pytest.mark.parametrize(("suffix", "rate"), [(".safetensors", None), (".safetensors", 0.1), (".onnx", None)])
def test_a_file_with_a_past_is_stepped_through_the_log(
    tmp_path: Path, suffix: str, rate: float | None
) -> None:
    data = log_with(*PAST)
    policy = policy_by(data, rate)
    log = JudgedLog.from_dataset(data, 0.9)
    judged = [
        JudgedPolicy("p", asked_by_log("p", each, data.info), 1)
        for each in (policy, file_of(policy, tmp_path, suffix))
    ]
    run, file = actions_in_the_log(judged, log, small())
    np.testing.assert_allclose(file.here, run.here, atol=1e-5)
    np.testing.assert_allclose(file.there, run.there, atol=1e-5)
    assert (
        np.abs(run.here[1:] - run.there[:-1]).max() > 0.01
    )  # where an episode ends, what follows is another


def test_a_file_with_a_past_remembers_what_it_did_itself_in_a_rollout(tmp_path: Path) -> None:
    data = log_with(*PAST)
    policy = policy_by(data)
    asked = asked_by_log("p", file_of(policy, tmp_path, ".safetensors"), data.info)
    act = rollout_actions(JudgedPolicy("p", asked, 1), 2, small())
    controller, rng = policy.controller(4), np.random.default_rng(2)
    for _ in range(5):
        obs = rng.normal(size=(4, 6)).astype(np.float32)  # of which x and y alone count: places 0 and 4
        np.testing.assert_allclose(act(obs), controller.act(obs[:, [0, 4]]).action, atol=1e-5)


@pytest.mark.slow
def test_a_file_with_a_past_is_judged_as_its_run_is(tmp_path: Path) -> None:
    data = log_with(*PAST)
    policy = policy_by(data)
    several = {"run": policy, "file": file_of(policy, tmp_path, ".safetensors")}
    settings = {**SHORT, "model_updates": 60, "model_members": 2, "rollout_starts": 5}
    run, file = judge(several, data, **settings).policies
    assert file.value == pytest.approx(run.value, rel=1e-4)
    assert file.worlds == pytest.approx(run.worlds, rel=1e-3)
    assert run.evidence.explanation is not None and file.evidence.explanation is None


def test_a_file_with_a_past_needs_its_columns_and_numbers(tmp_path: Path) -> None:
    data = log_with(*PAST)
    file = file_of(policy_by(data), tmp_path, ".safetensors")
    hidden = log_with("mean(x, 3)", "lags(a, 2)", "y", "sum(y, -1, 1)")
    with pytest.raises(DataError, match=r"is asked with x itself, which .* is read without; add it"):
        asked_by_log("p", file, hidden.info)
    with pytest.raises(DataError, match=r"is asked with lag\(a, 2\), which"):
        asked_by_log("p", file, log_with("x", "lag(a)", "mean(x, 3)", "y", "sum(y, -1, 1)").info)
    with pytest.raises(DataError, match="is read without them"):
        asked_by_log("p", file, log_with("x", "y").info)
    with pytest.raises(UserError, match="step it with controller"):
        asked_by_log("p", file, data.info).predict(np.zeros((1, 6), np.float32))
