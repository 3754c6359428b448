"""A live policy: double precision, a copy of one moment, draws as its learner would make them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms import CRR, SAC
from rl_training.algorithms.learner import Learner
from rl_training.algorithms.stack import stack_learners, unstack_member
from rl_training.core.errors import UserError
from rl_training.core.spaces import Spaces
from rl_training.core.streams import torch_generator
from rl_training.core.transforms import ObservationNormalizer, Transform
from rl_training.models import MLPAWACModel, MLPSACModel
from rl_training.policies.policy import Policy

SPACES = Spaces(3, (-1.0, -1.0), (1.0, 1.0))
OBS = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)


def sac(seed: int = 0) -> SAC:
    model = MLPSACModel(3, 2, hidden_sizes=(32, 32), generator=torch.Generator().manual_seed(seed))
    return SAC(model=model, seed=seed)


def critic_weighted_crr() -> CRR:
    model = MLPAWACModel(
        3, 2, hidden_sizes=(32,), policy="squashed", generator=torch.Generator().manual_seed(0)
    )
    return CRR(model=model, critic_weighted=True, beta=0.01, target_update_interval=1)


def policy_of(learner: Learner, steps: Sequence[Transform] = ()) -> Policy:
    learner.policy.set_units(SPACES, steps)
    return learner.policy.snapshot()


def train(learner: Learner, updates: int) -> None:
    rng = np.random.default_rng(1)
    rows = {"obs": (8, 3), "actions": (8, 2), "rewards": (8,), "next_obs": (8, 3), "dones": (8,)}
    for step in range(updates):
        batch = {
            name: torch.from_numpy(rng.uniform(0.0, 0.9, shape).astype(np.float32))
            for name, shape in rows.items()
        }
        learner.update(batch, global_step=step)


def test_acts_in_double_precision() -> None:
    """By hand, in numpy, with a normaliser and at a million times the range."""
    learner = sac()
    normalizer = ObservationNormalizer(torch.tensor([1.0, -2.0, 0.3]), torch.tensor([0.1, 3.0, 1.0]))
    layers = [*learner.model.actor.net.hidden, learner.model.actor.net.output]
    weights: Any = [
        (layer.weight.detach().double().numpy(), layer.bias.detach().double().numpy()) for layer in layers
    ]
    obs = (OBS * np.logspace(0, 6, 50)[:, None]).astype(np.float32)
    scale = (normalizer.std + normalizer.epsilon).double().numpy()
    x = (obs.astype(np.float64) - normalizer.mean.double().numpy()) / scale
    for weight, bias in weights[:-1]:
        x = np.maximum(x @ weight + bias, 0.0)
    wanted = np.tanh((x @ weights[-1][0] + weights[-1][1])[:, :2])
    policy = policy_of(learner, [normalizer])
    actions = policy.predict(obs)
    assert actions.dtype == np.float32
    np.testing.assert_allclose(actions, wanted, rtol=0, atol=1e-7)
    np.testing.assert_array_equal(policy.act_unit(obs), actions)


@pytest.mark.parametrize("make", [sac, critic_weighted_crr])
def test_is_a_copy_of_one_moment(make: Any) -> None:
    learner = make()
    train(learner, 2)
    policy = policy_of(learner)
    before = policy.predict(OBS)
    twin = make()
    train(twin, 2)
    train(learner, 20)
    train(twin, 20)
    np.testing.assert_array_equal(policy.predict(OBS), before)
    after = policy_of(learner).predict(OBS)
    assert np.abs(after - before).max() > 1e-3
    for name, tensor in learner.tensors().items():  # training noticed nothing of the policies
        assert tensor.dtype == torch.float32 and torch.equal(tensor, twin.tensors()[name])


@pytest.mark.parametrize("make", [sac, critic_weighted_crr])
def test_draws_are_those_of_the_learner(make: Any) -> None:
    learner = make()
    train(learner, 5)
    policy = policy_of(learner)
    actor = learner.acting()
    noise = torch.randn((50, actor.noise_size), generator=torch_generator(0, "act"))
    with torch.no_grad():
        wanted = actor.draw(torch.from_numpy(OBS), noise)
    drawn = policy.act(OBS, deterministic=False)
    np.testing.assert_allclose(drawn, wanted, rtol=0, atol=1e-5)
    assert np.abs(drawn - policy.act(OBS)).max() > 0.1
    assert np.abs(drawn - policy.act(OBS, deterministic=False)).max() > 0.1  # the next draw is another


def test_a_seed_out_of_a_stack_acts_as_it_would_alone() -> None:
    singles = [sac(seed) for seed in (0, 1)]
    stack = stack_learners(singles)
    for index, single in enumerate(singles):
        actions = stack.policy.snapshot(index).predict(OBS)
        np.testing.assert_array_equal(actions, policy_of(unstack_member(stack, index)).predict(OBS))
        np.testing.assert_array_equal(actions, policy_of(single).predict(OBS))


def test_a_device_without_float64_acts_on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = sac().policy
    wanted = policy.snapshot().predict(OBS)
    monkeypatch.setattr(
        Policy, "device", property(lambda self: torch.device("mps" if self is policy else "cpu"))
    )
    exact = policy.snapshot()
    assert next(exact.actor.parameters()).device.type == "cpu" and exact.dtype == torch.float64
    np.testing.assert_array_equal(exact.predict(OBS), wanted)


def test_its_steps_go_where_it_goes() -> None:
    normalizer = ObservationNormalizer(torch.zeros(3), torch.ones(3))
    policy = policy_of(sac(), [normalizer]).float()
    assert policy.dtype == torch.float32
    (step,) = policy.observation_steps
    assert isinstance(step, ObservationNormalizer) and step.mean.dtype == torch.float32


def test_it_refuses_spaces_of_another_size() -> None:
    with pytest.raises(UserError, match="takes 3 observations and gives 2 actions, the spaces have 3 and 1"):
        sac().policy.set_units(Spaces(3, (-1.0,), (1.0,)))
