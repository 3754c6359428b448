"""Why a policy is not judged by the model, or the episodes, that it was found in: the opposite, planted."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
import torch

from rl_training.algorithms.dynamics import Dynamics
from rl_training.core.spaces import Spaces
from rl_training.data.info import DataInfo
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.splits import split_episodes
from rl_training.judging import judge, judge_policies
from rl_training.judging.fit import OnProgress
from rl_training.judging.log import JudgedLog
from rl_training.judging.model import fit_dynamics
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import PolicyJudgement

EPISODES, STEPS = 60, 20
SPACES = Spaces(2, (-1.0,) * 3, (1.0,) * 3)
SETTINGS = {
    **{
        "gamma": 0.9,
        "confidence": 0.5,
        "hidden_sizes": (32,),
        "members": 5,
        "updates": 700,
        "importance": False,
    },
    **{"model_members": 3, "model_hidden_sizes": (64, 64), "model_updates": 1500, "rollout_starts": 30},
}


def chance() -> TransitionDataset:
    """States and rewards go their way whatever is done: no policy is better than another."""
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(EPISODES, STEPS + 1, 2)).astype(np.float32)
    for step in range(STEPS):
        obs[:, step + 1] = 0.8 * obs[:, step] + 0.6 * obs[:, step + 1]
    ends = np.tile(np.arange(STEPS) == STEPS - 1, EPISODES)
    return TransitionDataset(
        obs[:, :-1].reshape(-1, 2),
        rng.uniform(-1.0, 1.0, size=(EPISODES * STEPS, 3)),
        obs[:, :-1, 0].reshape(-1) + rng.normal(size=EPISODES * STEPS),
        obs[:, 1:].reshape(-1, 2),
        np.zeros(EPISODES * STEPS),
        truncations=ends,
        info=DataInfo("chance", spaces=SPACES),
    )


class Pleasing:
    """What pleases a model most, of some actions."""

    spaces = SPACES

    def __init__(self, learner: Dynamics, log: JudgedLog) -> None:
        self.learner, self.log = learner, log

    def predict(self, obs: npt.ArrayLike) -> npt.NDArray[np.float32]:
        seen = torch.from_numpy(self.log.obs_scale.apply(obs))
        tried = np.random.default_rng(1).uniform(-1.0, 1.0, (48, 3)).astype(np.float32)
        scaled = torch.from_numpy(self.log.action_scale.apply(tried))
        with torch.no_grad():
            rewards = [
                self.learner.dynamics(seen.unsqueeze(0), each.expand(1, len(seen), -1))[0][..., -1]
                for each in scaled
            ]
        return tried[torch.stack(rewards).mean(1).argmax(0).numpy()]


@pytest.mark.slow
def test_a_policy_is_not_judged_by_what_it_was_found_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interval that holds half of the truth is short enough to tell so much by so few rows."""
    seen, unseen = split_episodes(chance(), 0.5, 0)
    config = JudgeConfig.build(SETTINGS)
    log = JudgedLog.from_dataset(seen, config.gamma)
    learner = fit_dynamics(log, config, lambda name, done, updates: None)
    policy = Pleasing(learner, log)

    def told(data: TransitionDataset) -> PolicyJudgement:
        return judge({"pleasing": policy}, data, **SETTINGS).policies[0]

    def same(log: JudgedLog, config: JudgeConfig, on_progress: OnProgress, cache: object = None) -> Dynamics:
        return learner

    apart = told(unseen)
    monkeypatch.setattr(judge_policies, "fit_dynamics", same)
    together = told(seen)
    spread = log.reward_scale.spread
    believed, known = (each.estimates["model"].value for each in (together, apart))
    assert (together.verdict, apart.verdict) == ("better", "indistinguishable")
    assert together.difference.value > 4 * abs(apart.difference.value)
    assert believed > 0.5 * spread > abs(known)
