"""Networks for choices: probabilities and draws of known numbers, the encoding, values of each action."""

from __future__ import annotations

import pytest
import torch

from learner_checks import close, numbers
from rl_training.core.errors import ConfigError
from rl_training.core.spaces import Box, Choice, Spaces
from rl_training.models import MLPIQLModel, MLPSACModel
from rl_training.models.choices import (
    FactoredActor,
    LevelCritics,
    entropy,
    gumbel_max,
    joint_actions,
    joint_log_probabilities,
    joint_shares,
)
from rl_training.models.critics import QEnsemble
from rl_training.models.networks import NetworkPlan

LEVELS = [3, 1, 2]
MODE, VALVE, PUMP = Choice((5.0, 6.0, 7.0)), Box(0.0, 10.0), Choice(("off", "on"))
MIXED = Spaces.of(4, [MODE, VALVE, PUMP])


def known_actor(family: str = "unbounded") -> FactoredActor:
    """Outputs are the observation: a mean of 0.2 and logits (1, 0, -1), (0.3, -0.2)."""
    actor = FactoredActor(6, 6, NetworkPlan(hidden_sizes=()), levels=LEVELS, family=family).double()
    with torch.no_grad():
        actor.net.output.weight.copy_(torch.eye(6))
        actor.net.output.bias.zero_()
        actor.boxes.free_log_std.fill_(0.5).log_()
    return actor


OBS = numbers(0.2, 1.0, 0.0, -1.0, 0.3, -0.2).unsqueeze(0)


def test_the_probabilities_of_a_mixture_have_the_known_values() -> None:
    actor = known_actor()
    values, log_std = actor.distribution(OBS)
    close(values[0, :3], (-0.407606, -1.407606, -2.407606))
    close(values[0, 3], 0.2)
    close(values[0, 4:], (-0.474077, -0.974077))
    close(log_std[0], (0.0, 0.0, 0.0, -0.693147, 0.0, 0.0))
    close(entropy(values[0, :3]), 0.832396)
    close(entropy(values[0, 4:]), 0.662847)
    taken = numbers(-1.0, -1.0, 1.0, 0.5, 1.0, -1.0).unsqueeze(0)  # the third level, 0.5, the first level
    close(actor.log_prob(OBS, taken), (-0.405791 - 2.407606 - 0.474077,))
    close(actor.log_prob(OBS, taken), (-3.287474,))


def test_the_mode_is_the_likeliest_level_and_a_draw_has_the_largest_noisy_logit() -> None:
    close(gumbel_max(numbers(1.0, 0.0, -1.0), numbers(0.2, 0.9, 0.5)).double(), 1.0)
    actor = known_actor()
    close(actor.mode(OBS)[0], (1.0, -1.0, -1.0, 0.2, 1.0, -1.0))
    normal = torch.special.ndtri(numbers(0.2, 0.9, 0.5, 0.5, 0.5, 0.9)).unsqueeze(0)
    actions, logprobs = actor(OBS, normal)
    close(actions[0], (-1.0, 1.0, -1.0, 0.2, -1.0, 1.0))
    close(logprobs, actor.log_prob(OBS, actions))


@pytest.mark.parametrize("extreme", [-40.0, 40.0])
def test_noise_beyond_what_single_precision_holds_still_draws_a_level(extreme: float) -> None:
    actor = known_actor().float()
    actions, logprobs = actor(OBS.float(), torch.full((1, 6), extreme))
    assert logprobs.isfinite().all() and actions[0, :3].sum() == -1.0 and actions[0, 4:].sum() == 0.0


@pytest.mark.parametrize("family", ["unbounded", "tanh_mean", "sigmoid_std", "squashed"])
def test_draws_come_as_often_as_their_probability_says(family: str) -> None:
    torch.manual_seed(0)
    actor = FactoredActor(2, 6, NetworkPlan(hidden_sizes=(8,)), levels=LEVELS, family=family)
    obs, noise = torch.tensor([[0.5, -1.0]]), torch.randn(20_000, 6)
    actions, logprobs = actor(obs.expand(20_000, 2), noise)
    shares = (actions + 1.0).mean(0) / 2.0
    values = actor.distribution(obs)[0][0]
    for block in (slice(0, 3), slice(4, 6)):
        assert (shares[block] - values[block].exp()).abs().max() < 0.015
    torch.testing.assert_close(logprobs, actor.log_prob(obs.expand(20_000, 2), actions), atol=2e-3, rtol=1e-3)


def test_a_box_beside_choices_has_the_density_it_has_alone() -> None:
    mixed = FactoredActor(4, 6, levels=LEVELS, family="squashed", log_std_multiplier=1.0)
    outputs, actions = torch.randn(5, 7), torch.rand(5, 6) * 1.8 - 0.9
    assert mixed.boxes is not None
    alone = mixed.boxes.density(actions[:, 3:4], *mixed.boxes.distribution(outputs[:, :2]))
    levels = outputs[:, 2:5].log_softmax(-1), outputs[:, 5:].log_softmax(-1)
    blocks = actions[:, :3], actions[:, 4:]
    of_levels = sum((0.5 * (a + 1.0) * p).sum(-1) for a, p in zip(blocks, levels, strict=True))
    torch.testing.assert_close(
        mixed.density(actions, *mixed.of_outputs(outputs, torch.zeros(5, 4))), alone + of_levels
    )
    assert mixed.options() == {"levels": LEVELS, "family": "squashed", "log_std_multiplier": 1.0}


def test_combinations_count_the_last_choice_fastest() -> None:
    every = joint_actions([3, 2])
    assert every.shape == (6, 5)
    assert torch.equal(joint_shares(every, [3, 2]), torch.eye(6))
    assert every[1].tolist() == [1.0, -1.0, -1.0, -1.0, 1.0]
    logits = torch.randn(4, 5)
    values = torch.cat([logits[:, :3].log_softmax(-1), logits[:, 3:].log_softmax(-1)], dim=-1)
    joint = joint_log_probabilities(values, [3, 2])
    close(joint.double().exp().sum(-1), [1.0] * 4)
    torch.testing.assert_close(joint[:, 5], values[:, 2] + values[:, 4])


def test_level_critics_answer_as_critics_of_actions_do() -> None:
    critic = LevelCritics(3, [3, 2], 2, NetworkPlan(hidden_sizes=(8,), part="critic"))
    obs, every = torch.randn(4, 3), joint_actions([3, 2])
    values = critic.values(obs)
    assert values.shape == (2, 4, 6)
    torch.testing.assert_close(critic.many(obs, every.expand(4, 6, 5)), values)
    for k, action in enumerate(every):
        torch.testing.assert_close(critic(obs, action.expand(4, 5)), values[..., k])


def test_a_model_takes_the_heads_that_its_actions_need() -> None:
    choices = Spaces.of(4, [MODE, PUMP])
    many = Spaces.of(4, [Choice(tuple(map(float, range(65))))])
    kinds = {}
    for spaces in (MIXED, choices, many):
        model = MLPIQLModel(4, spaces.action_dim, spaces=spaces)
        assert isinstance(model.actor, FactoredActor)
        kinds[spaces.kind] = type(model.critic)
        assert model.sample_actions(torch.zeros(2, 4)).actions.shape == (2, spaces.action_dim)
        for q in model.q_values(torch.zeros(4), torch.zeros(spaces.action_dim)):
            assert q.shape == (1,)
    assert kinds == {"mixtures": QEnsemble, "choices": LevelCritics, "many choices": QEnsemble}
    assert MIXED.levels == (3, 1, 2)


def test_what_makes_no_sense_is_refused() -> None:
    for levels, family in (([3, 2], "unbounded"), ([0, 6], "unbounded"), ([6], "deterministic")):
        with pytest.raises(ConfigError, match="makes no sense"):
            FactoredActor(4, 6, levels=levels, family=family)
    with pytest.raises(ConfigError, match="actor_dropout must be 0"):
        MLPIQLModel(4, 6, spaces=MIXED, actor_network="residual", actor_dropout=0.1, hidden_sizes=(8, 8))
    assert isinstance(MLPSACModel(4, 6, spaces=MIXED).actor, FactoredActor)
