"""Signals of time inside a model: imagined ones are those of a log of what was imagined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import learner_checks as checks
import rl_training
from rl_training.algorithms import LION, MOPO
from rl_training.algorithms.dynamics import ImaginedSignals, ModelLearner, column_errors
from rl_training.algorithms.recipe import get_recipe
from rl_training.config.run import TrainConfig
from rl_training.core.errors import ConfigError, DataError
from rl_training.core.over_log import rows_since_start
from rl_training.core.signals import Program, Signals
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import ObservationNormalizer
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.models.dynamics import DynamicsEnsemble
from rl_training.policies.inputs import SignalMemory
from rl_training.policies.policy import Policy
from rl_training.runtime.offline_data import build_offline_dataset

TEXTS = ("x", "lags(a, 2)", "y", "diff(y)", "mean(x, 3)", "x - lag(y, 2)", "sum(y, -1, 1)", "steps()")
COLUMNS = (0, 3)
ROWS, EPISODE = 24, 8
SPACES = Spaces(2, (-3.0,), (5.0,))
SMALL = {"model_updates": 1, "hidden_sizes": [8], "members": 2}
LION_ONLY = {"behavior_updates": 1, "horizon": 5, "rollouts": 6, "model_noise": False, "policy_updates": 1}
MOPO_ONLY = {"model_hidden_sizes": [8], "horizon": 4, "imagined_share": 0.75}


def log_of(texts: tuple[str, ...] = TEXTS) -> TransitionDataset:
    rng = np.random.default_rng(0)
    rows = {name: rng.normal(size=ROWS).astype(np.float32) for name in ("x", "y", "a")}
    rows["episode"] = np.arange(ROWS) // EPISODE
    return rl_training.read_log(rows, observations=list(texts), actions="a", reward="x", episode="episode")


def learner_of(
    algo: str, data: TransitionDataset, rate: float | None = None, *, seed: int = 0, **settings: Any
) -> ModelLearner:
    """As a run builds it, in units of its own."""
    recipe, signals = get_recipe(algo), data.info.signals
    assert signals is not None
    signals = Signals(signals.program, signals.first_action, (rate,) if rate else ())
    width = signals.program.width
    own = LION_ONLY if algo == "lion" else MOPO_ONLY
    known = recipe.settings.model_fields
    given = {name: value for name, value in {**SMALL, **own, **settings}.items() if name in known}
    config = recipe.settings.build(given)
    learner = recipe.build_learner(config, Spaces(width, SPACES.action_low, SPACES.action_high), seed=seed)
    assert isinstance(learner, LION | MOPO)
    learner.policy.memory = SignalMemory.of(signals)
    spread = torch.linspace(0.5, 2.0, width)
    learner.policy.set_units(SPACES, [ObservationNormalizer(spread - 1.0, spread)])
    learner.look_at_data(batch_of(data, learner.policy))
    return learner


def batch_of(data: TransitionDataset, policy: Policy) -> dict[str, Tensor]:
    if data.info.signals and data.info.signals.program.plain_places:
        data = data.with_signal_states()
    rows = data.with_episodes().gather(torch.arange(len(data)))
    rows |= {name: policy.prepared(rows[name]) for name in ("obs", "next_obs")}
    rows["actions"] = torch.from_numpy(SPACES.encode(data.actions.numpy()))
    return rows


def signals_of(learner: ModelLearner) -> ImaginedSignals:
    assert learner.signals is not None
    return learner.signals


def check_follows_the_program(
    learner: ModelLearner, data: TransitionDataset, row: int, seen: list[Tensor], actions: list[Tensor]
) -> None:
    """What was seen from a row on is what the program makes of the log so far and of what was imagined."""
    signals, policy = signals_of(learner), learner.policy
    past = row % (EPISODE - 1)
    before = slice(row - past, row + 1)
    imagined = torch.stack([signals.plain(each) for each in seen])
    columns = torch.cat([data.obs[before], imagined])[:, COLUMNS].numpy()
    done = torch.cat([data.actions[before][:-1], *(policy.decoded(each)[None] for each in actions)])
    done = torch.cat([done, done[-1:]])  # what the last state is answered with does not count
    known = data.info.signals
    assert known is not None
    starts = rows_since_start(np.arange(len(columns)) == len(columns) - 1)
    wanted = known.program.over_log(columns, done.numpy(), starts, known.first_action)
    np.testing.assert_allclose(imagined.numpy(), wanted[past + 1 :], atol=2e-5)


@pytest.mark.parametrize("row", [0, 3, 6, 9])
def test_what_lion_imagines_is_a_log_that_its_program_has_gone_over(row: int) -> None:
    data = log_of()
    learner = learner_of("lion", data)
    assert isinstance(learner, LION)
    batch = batch_of(data, learner.policy)
    state, memory = (batch[name][row][None, None] for name in ("obs", "signal_states"))
    dial, seen, actions = torch.full((1, 1), 0.7), [], []
    with torch.no_grad():
        for _ in range(4):
            actions.append(learner.actor.mode(torch.cat([state[0], dial], -1))[0])
            step = learner.imagine(state, memory, dial, None, None)
            state, memory = step.state, step.memory
            seen.append(state[0, 0])
    check_follows_the_program(learner, data, row, seen, actions)


@pytest.mark.parametrize("row", [1, 12])
def test_what_mopo_imagines_is_a_log_that_its_program_has_gone_over(row: int) -> None:
    data = log_of()
    learner = learner_of("mopo", data, imagined_share=1.0)
    assert isinstance(learner, MOPO)
    batch = {name: values[[row]] for name, values in batch_of(data, learner.policy).items()}
    shapes = {"member": (4, 1), "action": (4, 1, 1), "change": (4, 1, data.obs.shape[1] + 1)}
    noise = {f"rollout_{name}": torch.zeros(shape) for name, shape in shapes.items()}
    with torch.no_grad():
        rows, _, _ = learner.imagine(batch, noise, 4)
    check_follows_the_program(learner, data, row, list(rows["next_obs"]), list(rows["actions"]))


def test_the_members_targets_are_asked_with_signals_too() -> None:
    """All members the same and nothing scattered: their successors are the one that was imagined."""
    data = log_of()
    learner = learner_of("mobile", data, penalty_samples=2)
    assert isinstance(learner, MOPO)
    asked: list[Tensor] = []
    learner.target_critic.register_forward_pre_hook(lambda _, given: asked.append(given[0]))
    for parameter in learner.kept_dynamics.parameters():
        parameter.data[...] = parameter[:1]
    batch, width = batch_of(data, learner.policy), data.obs.shape[1]
    batch["obs"], batch["signal_states"] = batch["obs"][:4], batch["signal_states"][:4]
    drawn = {"member": (4, 1), "action": (4, 1, 1), "change": (4, 1, width + 1)}
    noise = {f"rollout_{name}": torch.zeros(shape) for name, shape in drawn.items()}
    noise |= {"penalty_state": torch.zeros(2, 8, width), "penalty_action": torch.zeros(2, 8, 1)}
    with torch.no_grad():
        rows, mean, log_std = learner.imagine(batch, noise, 4)
        learner.member_targets(rows, mean, log_std, noise)
    for each in asked[0].reshape(4, 4, width):  # members x samples
        torch.testing.assert_close(each, rows["next_obs"], atol=1e-5, rtol=1e-5)


def test_gradients_go_through_past_actions() -> None:
    """One step later lag(a) is the action in its units (half of 8), two steps later lag(a, 2) is."""
    data = log_of()
    learner = learner_of("lion", data)
    signals = signals_of(learner)
    batch = batch_of(data, learner.policy)
    action = torch.zeros(1, 1, requires_grad=True)
    seen, memory = signals.following(batch["obs"][:1], action, batch["signal_states"][:1])
    (one,) = torch.autograd.grad(signals.plain(seen)[0, 1], action, retain_graph=True)
    later, _ = signals.following(seen, torch.zeros(1, 1), memory)
    (two,) = torch.autograd.grad(signals.plain(later)[0, 2], action)
    assert float(one) == pytest.approx(4.0, rel=1e-5) and float(two) == pytest.approx(4.0, rel=1e-5)


def test_columns_are_predicted_and_nothing_else() -> None:
    data = log_of()
    learner = learner_of("lion", data)
    assert learner.kept_dynamics.predicted.flatten().nonzero().flatten().tolist() == [*COLUMNS, 9]
    batch = batch_of(data, learner.policy)
    odd = {**batch, "next_obs": batch["next_obs"].clone()}
    odd["next_obs"][:, [1, 2, 4, 5, 6, 7, 8]] = 1e3
    losses = [learner.model_step(each, check=False)["model_loss"] for each in (batch, odd)]
    again = learner_of("lion", data).model_step(odd, check=False)["model_loss"]
    assert float(again) == float(losses[0])


@pytest.mark.parametrize("algo", ["lion", "mopo"])
def test_limits_of_the_rate_hold_in_what_is_imagined(algo: str) -> None:
    data = log_of()
    learner = learner_of(algo, data, rate=0.25)
    batch = batch_of(data, learner.policy)
    wanted = torch.tensor([[-1.0], [1.0], [0.0]])
    run = learner.as_run(wanted, batch["obs"][:3])
    before = data.obs[:3, 1].numpy()
    units = learner.policy.decoded(run)[:, 0].numpy()
    np.testing.assert_allclose(units, np.clip([-3.0, 5.0, 1.0], before - 0.25, before + 0.25), atol=1e-5)
    assert learner_of(algo, data).as_run(wanted, batch["obs"][:3]) is wanted


def test_states_are_those_after_every_row() -> None:
    data = log_of()
    signals = data.info.signals
    assert signals is not None
    states = data.with_signal_states().store.whole("signal_states").numpy()
    assert states.shape == (len(data), signals.program.layout.size)
    for row in (0, 5, 7):  # the first of an episode, one within it, the first of the next
        first = np.array([row % (EPISODE - 1) == 0])
        before = np.zeros_like(states[:1]) if first[0] else states[row - 1 : row]
        done = np.array([signals.first_action]) if first[0] else data.actions[row - 1 : row].numpy()
        _, after = signals.program.step(data.obs[row : row + 1, COLUMNS].numpy(), done, before, first)
        np.testing.assert_allclose(after[0], states[row], atol=1e-6)


@pytest.mark.parametrize("algo", ["lion", "mopo", "mobile"])
def test_runs_learn_with_a_history_in_every_stage(algo: str) -> None:
    data = log_of()
    learner = learner_of(algo, data)
    batch = batch_of(data, learner.policy)
    for step in range(4):
        metrics = learner.update(batch, global_step=step).metrics
    assert np.isfinite(list(metrics.values())).all()
    with pytest.raises(ConfigError, match="needs the batch field signal_states"):
        learner.update({name: batch[name] for name in batch if name != "signal_states"}, global_step=4)


@pytest.mark.slow
@pytest.mark.parametrize("algo", ["lion", "mobile"])
def test_stacked_and_compiled_learners_imagine_the_same(algo: str) -> None:
    data = log_of()

    def build(seed: int) -> ModelLearner:
        return learner_of(algo, data, rate=0.5, seed=seed, penalty_samples=2)

    rows = batch_of(data, build(0).policy)

    def batch(step: int) -> dict[str, Tensor]:
        drawn = torch.randint(len(data), (16,), generator=torch.Generator().manual_seed(step))
        return {name: values[drawn] for name, values in rows.items()}

    checks.check_stacked_equals_single(build, updates=3, seeds=(0, 1), batch=batch)
    checks.check_compiled_equals_eager(build, updates=3, batch=batch, eager_stages=["policy"])


@pytest.mark.parametrize(("algo", "has"), [("lion", True), ("mobile", True), ("iql", False)])
def test_batches_hold_the_states_where_they_are_imagined_from(algo: str, has: bool) -> None:
    settings = {"action_low": [-3.0], "action_high": [3.0], "validation_share": 0.34}
    config = TrainConfig(algo=algo, total_timesteps=9000, algo_kwargs=settings)
    prepared = build_offline_dataset(config, dataset=log_of())
    assert prepared.validation is not None
    for data in (prepared.dataset, prepared.validation):
        assert ("signal_states" in data.fields) is has
    plain = build_offline_dataset(config, dataset=log_of(("x", "y")))
    assert "signal_states" not in plain.dataset.fields


def test_columns_that_are_seen_through_formulas_alone_are_left_to_the_network() -> None:
    data = log_of(("x - y", "lag(x)"))
    learner = learner_of("lion", data)
    assert learner.signals is None and bool(learner.kept_dynamics.predicted.all())
    for step in range(3):
        learner.update(batch_of(data, learner.policy), global_step=step)
    with pytest.raises(DataError, match="signal_states need signals among which all columns are"):
        data.with_signal_states()


def test_a_program_without_a_past_has_an_empty_memory() -> None:
    data = log_of(("x", "y", "x - y"))
    learner = learner_of("lion", data)
    batch = batch_of(data, learner.policy)
    assert batch["signal_states"].shape == (len(data), 0)
    for step in range(3):
        learner.update(batch, global_step=step)
    known = Program(("x", "y", "x - y"), ("x", "y"), ("a",))
    assert known.layout.size == 0


def test_errors_further_ahead_follow_the_signals() -> None:
    """Where every imagined column is the logged one, signals are as logged: nothing is wrong in any step."""
    data = log_of()
    learner = learner_of("lion", data)
    batch = batch_of(data, learner.policy)
    ends = torch.as_tensor(data.episode_ends())

    class Told(DynamicsEnsemble):
        def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
            place = (actions[:, :, None] == batch["actions"]).all(-1).float().argmax(-1)
            right = self.change_of(batch["obs"], batch["next_obs"], batch["rewards"])[0, place]
            assert torch.allclose(obs, batch["obs"][place], atol=1e-4), (
                "asked with signals that were not logged"
            )
            return right, torch.zeros_like(right)

    dynamics = Told(learner.dynamics.obs_dim, 1, 2)
    dynamics.set_scales(batch)
    dynamics.set_predicted(COLUMNS)
    whole = EPISODE - 1 if data.next_obs is None else 3
    found = column_errors(
        dynamics, batch, ends, ["?"] * 99, torch.ones(99), learner=learner, steps=(1, whole)
    )
    assert len(found) == len(COLUMNS) + 1
    assert max(max(each.model) for each in found) < 1e-4
