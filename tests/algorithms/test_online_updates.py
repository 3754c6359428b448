"""What the algorithms change when they go online, on single updates."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from rl_training.algorithms import CQL, IQL, TD3BC, CalQL, ReBRAC
from rl_training.algorithms.learner import Learner
from rl_training.core.errors import ConfigError
from rl_training.models import MLPIQLModel, MLPReBRACModel, MLPSACModel, MLPTD3Model

SIZES: dict[str, Any] = {"obs_dim": 3, "action_dim": 2, "hidden_sizes": (8, 8)}


def batch(returns: float | None = None) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    rows = {
        "obs": torch.randn(12, 3, generator=generator),
        "actions": torch.rand(12, 2, generator=generator) * 1.8 - 0.9,
        "rewards": torch.randn(12, generator=generator),
        "next_obs": torch.randn(12, 3, generator=generator),
        "dones": torch.zeros(12),
    }
    return rows if returns is None else {**rows, "returns_to_go": torch.full((12,), returns)}


def model(kind: type[Any] = MLPSACModel, **keywords: Any) -> Any:
    return kind(**SIZES, **keywords, generator=torch.Generator().manual_seed(0))


def metrics_after(learner: Learner, rows: dict[str, torch.Tensor]) -> dict[str, float]:
    return {name: float(value) for name, value in learner.update(rows, global_step=0).metrics.items()}


def test_the_conservative_weight_changes_online() -> None:
    kinds = {"before": None, "online": 0.5}
    found = {}
    for name, weight in kinds.items():
        learner = CQL(model=model(), cql_alpha=4.0, cql_alpha_online=0.5)
        if weight is not None:
            learner.go_online(0.0)
        found[name] = metrics_after(learner, batch())
    assert found["online"]["cql_gap"] == found["before"]["cql_gap"]
    assert found["before"]["cql_penalty"] == pytest.approx(8 * found["online"]["cql_penalty"], rel=1e-5)
    same = CQL(model=model(), cql_alpha=4.0)
    same.go_online(0.3)
    assert metrics_after(same, batch())["cql_penalty"] == found["before"]["cql_penalty"]


def test_without_a_conservative_term_the_loss_is_the_bellman_error_alone() -> None:
    """With one critic drawn next action and a terminal batch, the target is the reward."""
    learner = CalQL(model=model(), cql_alpha=4.0, cql_alpha_online=0.0)
    metrics_after(learner, batch(returns=0.0))
    learner.go_online(0.0)
    assert learner.online_needs() == frozenset()
    rows = {**batch(), "dones": torch.ones(12)}
    q = learner.critic(rows["obs"], rows["actions"]).detach()
    found = metrics_after(learner, rows)
    assert found["critic_loss"] == pytest.approx(float(((q - rows["rewards"]) ** 2).mean(-1).sum()), rel=1e-5)
    assert not any(name.startswith(("cql_", "calibrat", "returns_to_go")) for name in found)


def test_cal_ql_asks_for_returns_while_it_is_conservative() -> None:
    learner = CalQL(model=model(), cql_alpha_online=0.1)
    learner.go_online(0.0)
    with pytest.raises(ConfigError, match="returns_to_go"):
        learner.update(batch(), global_step=0)
    assert metrics_after(learner, batch(returns=5.0))["calibration_rate"] == 1.0


def test_targets_take_the_minimum_of_the_critics_that_were_drawn() -> None:
    learner = CQL(model=model(num_critics=5), subset_size=2)
    rows, noise = batch(), {"next": torch.zeros(12, 2), "subset": torch.tensor([0.1, 0.9, 0.2, 0.8, 0.0])}
    with torch.no_grad():
        actions, _ = learner.draws_at(rows["next_obs"], noise["next"].unsqueeze(-2))
        values = learner.target_critic(rows["next_obs"], actions.squeeze(-2))
        target = learner.value_target(rows, noise)
    expected = rows["rewards"] + 0.99 * torch.minimum(values[1], values[3])
    torch.testing.assert_close(target, expected)
    with pytest.raises(ConfigError, match=r"subset_size must be <= num_critics \(2\), got 3"):
        CQL(model=model(), subset_size=3)


def test_the_pull_towards_the_data_fades_in_a_line() -> None:
    learner = TD3BC(model=model(MLPTD3Model), policy_delay=1)
    rows = batch()
    losses = []
    for progress in (None, 0.0, 0.25, 1.0):
        if progress is not None:
            learner.go_online(progress)
        with torch.no_grad():
            loss, metrics = learner.actor_loss(rows)
        losses.append((float(loss), float(metrics["bc_loss"])))
    (whole, imitation), (start, _), (later, _), (end, _) = losses
    assert start == whole
    assert later == pytest.approx(whole - 0.25 * imitation, rel=1e-5)
    assert end == pytest.approx(whole - imitation, rel=1e-5)


def test_rebrac_fades_its_pull_and_takes_nothing_off_the_target_online() -> None:
    learner = ReBRAC(model=model(MLPReBRACModel), actor_bc_coef=2.0, critic_bc_coef=3.0, policy_delay=1)
    rows = {**batch(), "next_actions": torch.zeros(12, 2)}
    noise = {"next": torch.zeros(12, 2)}
    with torch.no_grad():
        offline, penalised = learner.actor_loss(rows)[0], learner.value_target(rows, noise)
        learner.go_online(0.25)
        loss, parts = learner.actor_loss(batch())
        target = learner.value_target(batch(), noise)
        next_actions = learner.target_actor.mode(rows["next_obs"])
    assert float(loss) == pytest.approx(float(offline) - 0.25 * 2.0 * float(parts["bc_loss"]), rel=1e-5)
    torch.testing.assert_close(target - penalised, 0.99 * 3.0 * next_actions.square().sum(-1))


def test_other_algorithms_do_not_change() -> None:
    first, second = (IQL(model=model(MLPIQLModel)) for _ in range(2))
    second.go_online(0.5)
    assert metrics_after(first, batch()) == metrics_after(second, batch())
