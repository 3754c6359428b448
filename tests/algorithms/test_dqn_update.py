"""DQN, discrete CQL and SAC on choices: known numbers, fixed points, identities, every way of running."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

import learner_checks as checks
import toy_bandit as toy
from learner_checks import close, numbers
from rl_training.algorithms import DQN, SAC, DiscreteCQL, discrete_cql_loss, dqn_loss, losses
from rl_training.algorithms.discrete_cql import conservative_penalty
from rl_training.algorithms.dqn import double_values, td_loss
from rl_training.core.errors import ConfigError
from rl_training.core.spaces import Choice, Spaces
from rl_training.models import MLPDQNModel, MLPSACModel
from rl_training.models.choices import EpsilonGreedy, joint_actions
from rl_training.models.networks import NetworkPlan

TWO = Spaces.of(1, [Choice((0.0, 1.0))])
CHOICES = Spaces.of(checks.OBS, [Choice((0.0, 1.0, 2.0)), Choice(("off", "on"))])


def build(kind: Any, seed: int = 0, spaces: Spaces = CHOICES, **keywords: Any) -> Any:
    generator = torch.Generator().manual_seed(seed)
    made = MLPSACModel if kind is SAC else MLPDQNModel
    sizes = {"num_critics": keywords.pop("num_critics", 2)}
    model = made(
        spaces.obs_dim,
        spaces.action_dim,
        spaces=spaces,
        hidden_sizes=(16, 16),
        generator=generator,
        **sizes,
    )
    return kind(model, seed=seed, **keywords)


def random_batch(seed: int) -> dict[str, Tensor]:
    taken = torch.randint(6, (checks.BATCH,), generator=torch.Generator().manual_seed(seed))
    return {**PLAIN_BATCH(seed), "actions": joint_actions(CHOICES.levels)[taken]}


PLAIN_BATCH = checks.random_batch

# ---- known numbers

Q, PLACES = numbers((1.0, 2.0, 0.0), (0.5, -1.0, 3.0)), torch.tensor([1, 0])
ONLINE, TARGET = numbers((0.2, 0.9, 0.1), (1.0, -0.5, 1.5)), numbers((0.5, 0.4, 2.0), (0.3, 0.2, 0.1))
REWARDS, DONES = numbers(1.0, -0.5), numbers(0.0, 1.0)


def test_the_losses_have_the_known_values() -> None:
    q = Q.gather(-1, PLACES.unsqueeze(-1)).squeeze(-1)
    close(torch.logsumexp(Q, -1) - q, (0.407606, 2.595674))
    close(conservative_penalty(Q, q), 1.501640)
    best = double_values(ONLINE.unsqueeze(0), TARGET.unsqueeze(0))
    y = losses.td_target(REWARDS, DONES, best, 0.9)
    close(y, (1.36, -0.5))
    single = double_values(TARGET.unsqueeze(0), TARGET.unsqueeze(0))
    close(losses.td_target(REWARDS, DONES, single, 0.9)[0], 2.8)
    close(td_loss(q.unsqueeze(0), y, "square"), 0.704800)
    close(td_loss(q.unsqueeze(0), y, "huber"), 0.352400)
    found = discrete_cql_loss(
        {"q_values": Q, "actions": PLACES, "target_q_values": y, "cql_alpha": 2.0, "td_loss": "square"}
    )
    close(found["loss"], 3.708080)
    close(found["critic_loss"], 0.704800)
    close(dqn_loss({"q_values": Q, "actions": PLACES, "target_q_values": y})["critic_loss"], 0.352400)


def test_the_learner_computes_these_numbers() -> None:
    """States are one-hot rows of a network without hidden layers, which is then a table of values."""
    spaces = Spaces.of(2, [Choice((0.0, 1.0, 2.0))])
    model = MLPDQNModel(2, 3, spaces=spaces, hidden_sizes=()).double()
    table = model.actor.net.output
    with torch.no_grad():
        table.bias.zero_()
        table.weight.copy_(Q)
    eye = torch.eye(2, dtype=torch.float64)
    actions = joint_actions([3]).double()[PLACES]
    batch = {"obs": eye, "actions": actions, "rewards": REWARDS, "next_obs": eye, "dones": DONES}
    learner = DiscreteCQL(model, gamma=0.9, cql_alpha=2.0, td_loss="square")
    with torch.no_grad():
        learner.target_critic.net.output.weight.copy_(TARGET)
        table.weight.copy_(ONLINE)
    close(learner.value_target(batch), (1.36, -0.5))
    with torch.no_grad():
        table.weight.copy_(Q)
    close(learner.value_target(batch), (1.0 + 0.9 * 0.4, -0.5))
    metrics = learner.update(batch, global_step=0).metrics
    assert metrics["critic_loss"] == pytest.approx(((2.0 - 1.36) ** 2 + 1.0) / 2.0)
    assert metrics["cql_penalty"] == pytest.approx(1.501640, abs=1e-6)


@pytest.mark.parametrize(
    ("shares", "rewards", "weight", "expected"),
    [
        ((0.9, 0.1), (0.0, 0.0), 1.0, (0.097074, -0.873666)),
        ((0.9, 0.1), (0.0, 0.0), 0.1, (0.019520, -0.175678)),
        ((0.5, 0.5), (0.0, 1.0), 1.0, (0.162584, 0.837416)),
    ],
)
def test_the_bandit_of_two_levels_has_the_known_fixed_point(
    shares: tuple[float, float], rewards: tuple[float, float], weight: float, expected: tuple[float, float]
) -> None:
    """2 p (Q - r) + w (softmax(Q) - p) = 0."""
    taken = (torch.arange(20) >= shares[0] * 20).long()
    obs = torch.ones(20, 1)
    paid = torch.tensor(rewards)[taken]
    actions = joint_actions([2])[taken]
    batch = {"obs": obs, "actions": actions, "rewards": paid, "next_obs": obs, "dones": torch.ones(20)}
    learner = build(DiscreteCQL, spaces=TWO, learning_rate=2e-2, cql_alpha=weight, td_loss="square")
    toy.fit(learner, batch, updates=400)
    values = learner.critic.values(torch.ones(1, 1)).detach().mean(0)[0]
    torch.testing.assert_close(values, torch.tensor(expected), atol=5e-3, rtol=0)


def test_alpha_zero_is_double_dqn() -> None:
    conservative, plain = build(DiscreteCQL, cql_alpha=0.0), build(DQN)
    for step in range(5):
        for learner in (conservative, plain):
            learner.update(random_batch(step), global_step=step)
    for ours, theirs in zip(conservative.model.parameters(), plain.model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_online_the_penalty_has_its_own_weight() -> None:
    """`cql_alpha_online: 0` goes on as DQN, none as before."""
    for online, same in ((0.0, True), (None, False)):
        learner = build(DiscreteCQL, cql_alpha=2.0, cql_alpha_online=online)
        twin = build(DQN)
        learner.go_online(0.0)
        for each in (learner, twin):
            each.update(random_batch(0), global_step=0)
        equal = all(
            torch.equal(a, b)
            for a, b in zip(learner.model.parameters(), twin.model.parameters(), strict=True)
        )
        assert equal is same


# ---- acting


def test_epsilon_falls_in_a_line_and_follows_from_the_updates_done() -> None:
    learner = build(DQN, epsilon_start=0.9, epsilon_end=0.1, epsilon_updates=4)
    shares = []
    for step in range(6):
        shares.append(learner.policy.actor.epsilon)
        learner.update(random_batch(step), global_step=step)
    assert shares == pytest.approx([0.9, 0.7, 0.5, 0.3, 0.1, 0.1])
    again = build(DQN, epsilon_start=0.9, epsilon_end=0.1, epsilon_updates=4)
    learner = build(DQN, seed=1, epsilon_start=0.9, epsilon_end=0.1, epsilon_updates=4)
    learner.update(random_batch(0), global_step=0)
    again.load_state_dict(learner.state_dict())
    assert again.policy.actor.epsilon == pytest.approx(0.7)
    assert learner.policy.snapshot().actor.epsilon == pytest.approx(0.7)


def test_random_actions_come_as_often_as_epsilon_says() -> None:
    actor = EpsilonGreedy(1, 5, NetworkPlan(hidden_sizes=(), part="critic"), levels=[3, 2], epsilon=0.6)
    with torch.no_grad():
        actor.net.output.weight.zero_()
        actor.net.output.bias.zero_()
        actor.net.output.bias[0, 3] = 1.0
    noise = torch.randn(20_000, 2, generator=torch.Generator().manual_seed(0))
    actions, logprobs = actor(torch.zeros(20_000, 1), noise)
    shares = (actions.unsqueeze(1) == joint_actions([3, 2])).all(-1).float().mean(0)
    expected = torch.full((6,), 0.1)
    expected[3] += 0.4
    assert (shares - expected).abs().max() < 0.01
    assert logprobs.exp().unique().tolist() == pytest.approx([0.1, 0.5])
    assert torch.equal(actor.mode(torch.zeros(1, 1))[0], joint_actions([3, 2])[3])
    actor.epsilon = 0.0
    assert torch.equal(actor.draw(torch.zeros(1, 1), noise[:1]), actor.mode(torch.zeros(1, 1)))


# ---- every way of running


@pytest.mark.parametrize("kind", [DQN, DiscreteCQL, SAC])
def test_every_way_of_running_gives_the_same_learner(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "random_batch", random_batch)
    settings = {} if kind is SAC else {"target_update": "hard", "target_update_interval": 2}
    checks.check_stacked_equals_single(lambda seed: build(kind, seed, **settings), updates=3, seeds=(0, 1))
    checks.check_resumes_exactly(lambda seed: build(kind, seed, **settings), updates=3)


@pytest.mark.slow
@pytest.mark.parametrize("kind", [DiscreteCQL, SAC])
def test_a_compiled_update_is_the_eager_one(kind: Any) -> None:
    backend = checks.WHOLE if kind is DiscreteCQL else checks.GRAPHS
    checks.check_compiled_equals_eager(
        lambda seed: build(kind, seed), updates=6, batch=random_batch, backend=backend
    )


def test_targets_move_as_they_are_told() -> None:
    hard = build(DQN, target_update="hard", target_update_interval=2)
    before = copy.deepcopy(hard.target_critic.state_dict())
    hard.update(random_batch(0), global_step=0)
    assert all(torch.equal(v, before[k]) for k, v in hard.target_critic.state_dict().items())
    hard.update(random_batch(1), global_step=1)
    assert all(
        torch.equal(v, hard.critic.state_dict()[k]) for k, v in hard.target_critic.state_dict().items()
    )
    soft = build(DQN, tau=0.25)
    start = copy.deepcopy(soft.critic.state_dict())
    soft.update(random_batch(0), global_step=0)
    for name, value in soft.target_critic.state_dict().items():
        torch.testing.assert_close(value, start[name].lerp(soft.critic.state_dict()[name], 0.25))


# ---- SAC


def test_sac_weighs_all_levels_instead_of_drawing() -> None:
    learner = build(SAC, alpha=0.3, gamma=0.9)
    batch = random_batch(0)
    assert learner.noise_shapes(checks.BATCH) == {}
    log_first = learner.actor.distribution(batch["next_obs"])[0]
    q = learner.target_critic.values(batch["next_obs"]).amin(0)
    expected = torch.zeros(checks.BATCH)
    for place, action in enumerate(joint_actions(CHOICES.levels)):
        share = learner.actor.density(action.expand(checks.BATCH, -1), log_first, torch.zeros_like(log_first))
        expected += share.exp() * (q[:, place] - 0.3 * share)
    target = batch["rewards"] + 0.9 * (1.0 - batch["dones"]) * expected
    torch.testing.assert_close(learner.value_target(batch, {}), target)
    loss, logprobs = learner.actor_loss(batch, {}, "full")
    assert checks.reached(learner, loss) == {"model.actor"}
    assert ((logprobs < 0) & (logprobs >= -math.log(6.0) - 1e-5)).all()
    assert learner.target_entropy == pytest.approx(0.5 * math.log(6.0))


def test_sac_reaches_the_soft_optimum_of_a_bandit() -> None:
    """pi is softmax(r / alpha), and with an automatic temperature its entropy is the one asked for."""
    taken = torch.arange(20) % 2
    obs, actions = torch.ones(20, 1), joint_actions([2])[taken]
    batch = {
        "obs": obs,
        "actions": actions,
        "rewards": taken.float(),
        "next_obs": obs,
        "dones": torch.ones(20),
    }
    fixed = build(SAC, spaces=TWO, learning_rate=3e-2, alpha=0.5, tau=0.1)
    toy.fit(fixed, batch, updates=300)
    share = fixed.actor.distribution(torch.ones(1, 1))[0].exp()[0, 1].item()
    assert share == pytest.approx(1.0 / (1.0 + math.exp(-2.0)), abs=0.02)
    learned = build(SAC, spaces=TWO, learning_rate=1e-2, target_entropy=0.4, tau=0.1)
    toy.fit(learned, batch, updates=500)
    logs = learned.actor.distribution(torch.ones(1, 1))[0]
    assert -(logs.exp() * logs).sum().item() == pytest.approx(0.4, abs=0.03)


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(ConfigError, match="MLPDQNModel takes spaces of choices, these are of numbers"):
        MLPDQNModel(3, 2)
    with pytest.raises(ConfigError, match=r"actor_hidden_sizes must be null \(there is one network"):
        from rl_training.core.registry import ALGORITHMS

        ALGORITHMS.get("dqn").settings.build({"actor_hidden_sizes": [8]})
    with pytest.raises(ConfigError, match="makes no sense"):
        EpsilonGreedy(1, 3, levels=[2, 1])
