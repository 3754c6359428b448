"""The critic that a policy was trained with: found in files, asked in the user's units, and not believed."""

from pathlib import Path

import numpy as np
import pytest
import torch

from judging_problems import Proportional, actions_of, lqr_log, small
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import ObservationNormalizer
from rl_training.judging.checks import TrainedCritic, critic_optimism, trained_critic
from rl_training.judging.fqe import fit_values
from rl_training.judging.log import JudgedLog
from rl_training.models.models import MLPTD3Model
from rl_training.policies.policy import Policy

FIXTURES = Path(__file__).parents[1] / "fixtures" / "format_1"


class Sums(MLPTD3Model):
    """Two critics that add up what they are given."""

    def q_values(self, obs: torch.Tensor, actions: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = obs.sum(-1) + actions.sum(-1)
        return total - 1.0, total + 1.0


def test_it_is_asked_in_the_units_it_was_trained_in() -> None:
    """Observations shifted by 3 and halved, actions of [-2, 2] as [-1, 1], rewards at a quarter."""
    model = Sums(1, 1, hidden_sizes=(4, 4))
    steps = (ObservationNormalizer(torch.tensor([3.0]), torch.tensor([2.0]), epsilon=0.0),)
    critic = TrainedCritic(model, Policy(model.actor, Spaces(1, (-2.0,), (2.0,)), steps), 0.99, 0.25)
    found = critic.values(np.array([[5.0], [3.0]], np.float32), np.array([[2.0], [-1.0]], np.float32))
    assert found == pytest.approx([(1.0 + 1.0) * 4, (0.0 - 0.5) * 4])


@pytest.mark.parametrize("algo", ["td3_bc", "iql", "awac", "cql", "redq", "tqc"])
def test_checkpoints_hold_one(algo: str) -> None:
    critic = trained_critic(FIXTURES / f"{algo}.safetensors")
    assert critic is not None and critic.gamma == 0.99
    assert np.isfinite(critic.values(np.zeros((3, 3), np.float32), np.zeros((3, 1), np.float32))).all()


def test_cloning_has_none() -> None:
    assert trained_critic(FIXTURES / "bc.safetensors") is None


def test_only_what_is_above_earnings_and_judgement_is_optimism() -> None:
    data, policy = lqr_log(40, 10), Proportional(0.7)
    config = small(updates=600)
    log = JudgedLog.from_dataset(data, config.gamma)
    fitted = fit_values(log, [actions_of(policy, data)], config, lambda name, done, updates: None)
    known = np.nan_to_num(fitted.logged[0], nan=float(np.nanmean(fitted.logged[0])))
    spread = log.reward_scale.spread
    honest, points = critic_optimism(log, fitted, 0, known, config)
    assert honest.outcome == "passed" and len(points) == 10
    hopeful, _ = critic_optimism(log, fitted, 0, known + 2.0 * spread, config)
    assert hopeful.outcome == "warned"
    assert hopeful.numbers["above_judged"] == pytest.approx(2.0, abs=0.01)
