"""Positions of a dial under judgement: each a policy of its own, and which of them to take."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from judging_problems import lqr_log
from rl_training import load_policy, open_run
from rl_training.cli import main
from rl_training.config.run import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.spaces import Spaces
from rl_training.judging.candidates import at_positions, checked_dials, recommended, sentence_of_dial
from rl_training.judging.verdict import DialCurve, DialPosition, Interval, LimitOutcome
from rl_training.models.actors import Actor
from rl_training.policies.inputs import RuntimeInput
from rl_training.policies.policy import Policy
from rl_training.runs import saved
from rl_training.runs.train import train
from rl_training.runtime.offline_data import build_offline_dataset

TINY = {"updates": 40, "members": 2, "model_updates": 20, "model_members": 2, "importance": False, "seed": 1}


class Gain(Actor):
    """a = -dial s."""

    kind = "test_gain"

    def __init__(self) -> None:
        torch.nn.Module.__init__(self)
        self.obs_dim, self.action_dim = 2, 1
        self.one = torch.nn.Parameter(torch.ones(1, 1))

    def mode(self, obs: torch.Tensor) -> torch.Tensor:
        return -self.one * obs[..., :1] * obs[..., 1:]


def dialled() -> Policy:
    return Policy(
        Gain(), Spaces(1, (-1.0,), (1.0,)), inputs=(RuntimeInput("dial", 0.0, 1.0, 0.5),)
    ).snapshot()


class Told:
    """As much of a judgement as a choice among positions asks for: a table of gains."""

    def __init__(self, gains: dict[tuple[str, str], float]) -> None:
        self.gains = gains

    def compare(self, first: str, second: str) -> Interval:
        low = self.gains.get((first, second), -1.0)
        return Interval(low + 1.0, low, low + 2.0)


def points(*verdicts: str) -> list[DialPosition]:
    names = [f"p{index}" for index in range(len(verdicts))]
    return [
        DialPosition(index / 4, name, 0.0, -1.0, 1.0, verdict, 0.0)  # type: ignore[arg-type]
        for index, (name, verdict) in enumerate(zip(names, verdicts, strict=True))
    ]


@pytest.mark.parametrize(
    ("verdicts", "gains", "dial"),
    [
        (("better", "better", "better"), {("p1", "p0"): 0.1, ("p2", "p1"): 0.1}, 0.5),
        (("better", "better", "better"), {("p1", "p0"): 0.1}, 0.25),  # beyond it nothing is surely gained
        (("better", "better", "better"), {("p2", "p0"): 0.1}, 0.5),  # two small steps make one that is seen
        (("better", "refused", "better"), {("p1", "p0"): 0.1, ("p2", "p0"): 9.0}, 0.0),  # not past a refusal
        (("indistinguishable", "better"), {}, 0.0),
        (("refused", "better"), {("p1", "p0"): 1.0}, None),
    ],
)
def test_the_largest_position_that_passes_and_beyond_which_nothing_is_gained(
    verdicts: tuple[str, ...], gains: dict[tuple[str, str], float], dial: float | None
) -> None:
    told: Any = Told(gains)
    assert recommended(told, points(*verdicts)) == dial


@pytest.mark.parametrize(
    ("limits", "dial"),
    [
        (("breaks", "keeps", "keeps"), 0.5),  # what is done today need not be within the limits
        (("keeps", "breaks", "keeps"), 0.5),
        (("keeps", "keeps", "cannot tell"), 0.25),
        (("breaks", "cannot tell", "breaks"), None),
    ],
)
def test_positions_that_do_not_keep_the_limits_are_passed_over(
    limits: tuple[LimitOutcome, ...], dial: float | None
) -> None:
    steps = {(f"p{later}", f"p{sooner}"): 0.1 for later in range(3) for sooner in range(later)}
    told: Any = Told(steps)
    positions = [
        replace(each, limits=outcome)
        for each, outcome in zip(points("better", "better", "better"), limits, strict=True)
    ]
    assert recommended(told, positions) == dial
    sentence = sentence_of_dial(DialCurve("lion", tuple(positions), dial))
    wanted = "passes the checks and keeps the limits" if dial is None else "are not shown to keep the limits"
    assert wanted in sentence


def test_the_sentence_says_where_to_leave_it() -> None:
    positions = tuple(points("better", "better", "refused"))
    assert sentence_of_dial(DialCurve("run", positions, 0.25)) == (
        "run: turn the dial to 0.25; its checks pass, and further up nothing is surely gained. "
        "Positions 0.5 fail a check."
    )
    assert "leave the dial at 0;" in sentence_of_dial(DialCurve("run", positions, 0.0))
    refused = tuple(points("refused", "refused", "refused"))
    assert "no position passes" in sentence_of_dial(DialCurve("run", refused, None))
    assert (
        sentence_of_dial(DialCurve("run", positions, None)) == "run: no position of its dial is recommended."
    )


def test_positions_are_policies_of_their_own() -> None:
    policy = dialled()
    found = at_positions("run", policy, (0.0, 0.5))
    assert list(found) == ["run at dial 0", "run at dial 0.5"]
    assert [float(each.predict([0.8])[0]) for each in found.values()] == pytest.approx([0.0, -0.4])
    assert checked_dials([1, 0.5, 0.5]) == (0.5, 1.0)
    with pytest.raises(UserError, match="dial must be numbers from 0 to 1, got 2"):
        checked_dials([0, 2])


def test_a_judgement_draws_value_against_dial() -> None:
    told = rl_training.judge({"run": dialled()}, lqr_log(episodes=24), dial=[0.3, 0.9], **TINY)
    assert [each.name for each in told.policies] == ["run at dial 0.3", "run at dial 0.9"]
    (curve,) = told.dials
    assert [each.dial for each in curve.positions] == [0.3, 0.9]
    assert [each.value for each in curve.positions] == [each.value for each in told.policies]
    assert told.to_dict()["dials"][0]["name"] == "run"


def test_a_dial_needs_a_policy_that_has_one() -> None:
    class Still:
        def predict(self, obs: Any) -> Any:
            return 0 * obs

    with pytest.raises(UserError, match="dial needs a policy with a dial"):
        rl_training.judge({"still": Still()}, lqr_log(episodes=24), dial=[0.0], **TINY)


# ---- a run that learned in a model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """LION for a few updates, on 60 episodes of 10 steps; a third of them are held out."""
    folder = tmp_path_factory.mktemp("lion")
    data = lqr_log(episodes=60)
    np.savez(
        folder / "log.npz",
        **{name: getattr(data, name).numpy() for name in ("obs", "actions", "rewards", "next_obs")},
        terminated=data.dones.numpy(),
        truncated=data.episode_ends(),
    )
    settings = {"model_updates": 5, "behavior_updates": 5, "policy_updates": 5, "horizon": 3, "rollouts": 8}
    config = TrainConfig(
        algo="lion",
        total_timesteps=15,
        output_dir=str(folder),
        eval_episodes=0,
        algo_kwargs={
            **settings,
            "dataset_path": str(folder / "log.npz"),
            "validation_share": 0.4,
            "action_low": [-1.0],
            "action_high": [1.0],
            "hidden_sizes": [8],
            "judge_at_end": False,
        },
    )
    return train(config, quiet=True).run_dir


def test_it_is_judged_by_episodes_that_its_model_has_not_seen(run: Path) -> None:
    opened = open_run(run)
    held = opened.held_out_data
    assert opened.learned_in_a_model and opened.seen_in_training is None and held is not None
    told = rl_training.judge(run, dial=0.5, **TINY)
    assert told.data["episodes"] == 24 and told.data["rows"] == len(held)
    prepared = build_offline_dataset(opened.config)
    learned = {tuple(row) for row in (prepared.dataset.obs * 1).tolist()}
    normal = prepared.normalizer
    assert normal is not None
    assert not learned & {tuple(row) for row in normal.apply(held.obs).tolist()}
    # data that is given is taken as it is
    assert rl_training.judge(run, opened.data, dial=0.5, **TINY).data["episodes"] == 60


def test_what_was_learned_from_the_same_episodes_is_said(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(saved, "FEWEST_EPISODES", 30)
    told = rl_training.judge(run, dial=0.5, **TINY)
    assert told.data["episodes"] == 60
    assert "was found in a model of these very episodes: fewer than 30 were held out" in told.advice[0]


def test_the_dial_at_the_command_line(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(*words: str) -> str:
        assert main([*map(str, words)]) == 0
        return capsys.readouterr().out

    policy = open_run(run).policy
    for dial in (0.0, 1.0):
        found = json.loads(said("predict", "-k", run, "--obs", "0.4", "--dial", dial))
        assert found == pytest.approx(policy.predict([0.4], dial=dial).tolist(), abs=1e-6)
    file = tmp_path / "p.safetensors"
    said("export", "-k", run, "--out", file, "--dial", 0.8)
    assert load_policy(file).inputs[0].default == 0.8
    page, numbers = tmp_path / "judge.html", tmp_path / "judge.json"
    options = [word for name, value in TINY.items() for word in ("--set", f"{name}={value}")]
    out = said("judge", run, "--dial", "0,1", "--out", page, "--json", numbers, "--quiet", *options)
    assert "dial" in out.splitlines()[-1] or "dial" in out
    assert "Value against dial" in page.read_text() and len(json.loads(numbers.read_text())["dials"]) == 1
    assert main(["predict", "-k", str(run), "--obs", "0.4", "--dial", "3"]) == 2
    assert main(["judge", str(run), "--dial", "a,b"]) == 2
