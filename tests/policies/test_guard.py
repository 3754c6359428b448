"""A guard notices observations unlike its data, equally in every format, and says what to play instead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from helpers import BARE_STATE, plain_spaces, slow_but_two, tiny_config
from judging_problems import lqr_log
from rl_training.algorithms.recipe import get_recipe
from rl_training.cli import main
from rl_training.core.errors import CheckpointError, ConfigError, DataError, UserError
from rl_training.core.registry import algorithm_names
from rl_training.core.spaces import Box, Choice, Spaces
from rl_training.core.transforms import ObservationNormalizer
from rl_training.data import TransitionDataset
from rl_training.policies.acting import Controller
from rl_training.policies.export.numpy import light_policy_bytes, open_light
from rl_training.policies.export.torchscript import METADATA_FILE, quiet_deprecation
from rl_training.policies.export.trace import trace_policy
from rl_training.policies.files import load_policy
from rl_training.policies.guard import WITH_ACTIONS, Fallback, GuardFacts
from rl_training.policies.guard_fitting import Guard, GuardConfig, fit_guard, novelties, unpack_guard
from rl_training.policies.opened import ACTION, describe_policy
from rl_training.runs import export as exporting
from rl_training.runs.export import guard_of_rows, usual_change

SPACES = Spaces(2, (-1.0, 0.0), (1.0, 10.0))
ONE_ACTION = Spaces(3, (-1.0,), (1.0,))
FACTS = GuardFacts("observations", 2, 99.0, 1.5, 100, 20, 0.01, 0.0, "a log", Fallback("none", (0.0, 5.0)))
NAN, INF = float("nan"), float("inf")


def by_hand(**changes: Any) -> Guard:
    numbers = {
        "mean": [1.0, 0.0],
        "scale": [2.0, 1.0],
        "whitening": [[1.0, 0.0], [0.0, 1.0]],
        "centres": [[0.0, 0.0], [3.0, 4.0]],
        "reach": [1.0, 2.0],
    }
    return Guard(FACTS, {name: torch.tensor(value) for name, value in (numbers | changes).items()})


def rows(count: int = 2000, seed: int = 0) -> torch.Tensor:
    """Two correlated columns and one that never changes."""
    draws = np.random.default_rng(seed).normal(size=(count, 2))
    columns = [draws[:, 0], draws[:, 0] + 0.1 * draws[:, 1], np.full(count, 20.0)]
    return torch.from_numpy(np.stack(columns, axis=1).astype(np.float32))


@pytest.mark.parametrize(
    ("point", "wanted"),
    [
        ((1.0, 0.0), 0.0),  # the first centre itself
        ((5.0, 0.0), 2.0),  # scaled (2, 0): 2 / 1 from the first, sqrt(17) / 2 = 2.06 from the second
        ((7.0, 0.0), 2.0),  # scaled (3, 0): 3 / 1 from the first, 4 / 2 from the second
        ((7.0, 4.0), 0.0),
        ((7.0, 10.0), 3.0),
    ],
)
def test_distances_by_hand(point: tuple[float, float], wanted: float) -> None:
    assert by_hand()(torch.tensor([point]).double()).item() == pytest.approx(wanted, abs=1e-6)


def test_whitening_is_applied() -> None:
    guard = by_hand(whitening=[[0.0, 5.0], [1.0, 0.0]], centres=[[0.0, 0.0], [900.0, 0.0]])
    assert guard(torch.tensor([[3.0, 0.0]]).double()).item() == pytest.approx(5.0)


@pytest.mark.parametrize("percentile", [99.0, 90.0, 50.0])
def test_the_limit_is_a_percentile_of_held_out_rows(percentile: float) -> None:
    held = rows(1000, seed=1)
    guard = fit_guard(rows(), held, GuardConfig(percentile=percentile), ONE_ACTION, "x", (0.0,))
    beyond = float((novelties(guard, held.double()) > 1.0).double().mean())
    assert beyond == guard.facts.held_out_beyond
    assert 1.0 - percentile / 100.0 - 0.003 <= beyond <= 1.0 - percentile / 100.0 + 1e-9
    assert 0.0 <= guard.facts.training_beyond <= beyond and guard.facts.rows == 2000


def test_what_is_noticed() -> None:
    guard = fit_guard(rows(), rows(500, seed=1), GuardConfig(centres=32), ONE_ACTION, "x", (0.0,))
    points = torch.tensor(
        [[0.0, 0.0, 20.0], [1.0, 1.0, 20.0], [9.0, 9.0, 20.0], [1.0, -1.0, 20.0], [0, 0, 21]]
    )
    flagged = (novelties(guard, points.double()) > 1.0).tolist()
    # Each value of the fourth is usual, the two together are not; the last changes a steady column.
    assert flagged == [False, False, True, True, True]
    assert guard.facts.centres == 32 and guard.centres.shape == (32, 3)


def test_a_gap_between_two_regimes_is_noticed() -> None:
    draws = np.random.default_rng(0).normal(size=(2, 600, 1)) * 0.1 + np.array([[[-5.0]], [[5.0]]])
    points = torch.from_numpy(draws.reshape(-1, 1).astype(np.float32))
    guard = fit_guard(
        points[::2], points[1::2], GuardConfig(centres=8), Spaces(1, (-1.0,), (1.0,)), "x", (0.0,)
    )
    assert (novelties(guard, torch.tensor([[-5.0], [5.0], [0.0]]).double()) > 1.0).tolist() == [
        False,
        False,
        True,
    ]


def test_actions_count_where_asked_for() -> None:
    log = lqr_log(episodes=100)
    guard = guard_of_rows([log], Spaces(1, (-3.0,), (3.0,)), GuardConfig(actions=True))
    assert guard.facts.points == WITH_ACTIONS and guard.facts.held_out_rows == 200
    obs = torch.zeros(2, 1)
    novelty = guard(guard.points(obs, torch.tensor([[0.5], [3.0]])))[:, 0]
    assert novelty[0] < 1.0 < novelty[1]


GAPS = np.array(
    [[NAN, 0.0, 20.0], [0.0, NAN, NAN], [INF, 0.0, 20.0], [0.0, -INF, 20.0], [INF, -INF, NAN], [0, 0, 20]],
    dtype=np.float32,
)


@pytest.mark.filterwarnings("ignore:invalid value encountered")  # numpy, about infinity minus infinity
@pytest.mark.parametrize("algo", slow_but_two(algorithm_names()))
def test_every_format_gives_the_same_novelty(algo: str) -> None:
    recipe = get_recipe(algo)
    settings = recipe.settings.build({"hidden_sizes": [8]})
    learner = recipe.build_learner(settings, plain_spaces(algo, 3, 1), seed=0, device=torch.device("cpu"))
    spaces = Spaces(3, (-2.0,), (2.0,)) if not learner.model.spaces.choices else learner.model.spaces
    learner.policy.set_units(spaces, [ObservationNormalizer(torch.ones(3), torch.full((3,), 2.0))])
    policy, plain = learner.policy.snapshot(), trace_policy(learner.policy)
    with_actions = algo in ("sac", "iql")
    data = torch.cat([rows(), torch.linspace(-2, 2, 2000)[:, None]], 1) if with_actions else rows()
    policy.guard = fit_guard(data, data[::4], GuardConfig(actions=with_actions), spaces, "x", (0.0,))
    program = trace_policy(policy)
    metadata = describe_policy(BARE_STATE, policy, program, None)
    obs = np.concatenate([rows(100).numpy(), 1000.0 * rows(100, seed=2).numpy()])
    wanted = policy.predict_guarded(obs)
    assert wanted.flagged[100:].all() and not wanted.flagged[:100].all()
    np.testing.assert_array_equal(wanted.action, policy.predict(obs))
    for format in exporting.SUFFIXES:
        encode, decode = exporting.codec(format)
        given = decode(encode(policy, program, metadata), metadata)(obs)
        np.testing.assert_allclose(given["novelty"][:, 0], wanted.novelty, rtol=1e-5, atol=1e-5)
        np.testing.assert_allclose(given["action"], wanted.action, atol=1e-5)
        # Whoever reads the file's own output asks whether it is > 1, which NaN is not.
        gaps = decode(encode(policy, program, metadata), metadata)(GAPS)["novelty"][:, 0]
        assert (gaps[:-1] == np.inf).all() and gaps[-1] < np.inf, format
    light = open_light(light_policy_bytes(program, metadata), metadata)
    # Who asks for the action alone pays for nothing else, and a file without a guard has nothing of it.
    assert light.parts[ACTION].description() == plain.description()
    assert not any(name.startswith("guard") for name in plain.constants)


@pytest.mark.parametrize(
    ("fallback", "flags", "played"),
    [
        (Fallback("none", (0.1,)), (True, True), (0.5, -0.5)),
        (Fallback("hold", (0.1,)), (False, True, True, False), (0.5, 0.5, 0.5, -0.5)),
        (Fallback("hold", (0.1,)), (True, True, False), (0.1, 0.1, 0.5)),  # nothing to hold yet
        (Fallback("action", (0.1,)), (False, True, False), (0.5, 0.1, 0.5)),
        (Fallback("rate", (0.1,), (0.25,)), (False, True, True, False), (0.5, 0.25, 0.5, -0.5)),
        (Fallback("rate", (0.1,), (0.25,)), (True, True, True), (0.1, -0.15, 0.1)),
        # None stands for an observation with gaps: the policy has no action of its own.
        (Fallback("none", (0.1,)), (None, False, None), (0.1, -0.5, -0.5)),
        (Fallback("hold", (0.1,)), (None, False, None), (0.1, -0.5, -0.5)),
        (Fallback("action", (0.1,)), (False, None), (0.5, 0.1)),
        (Fallback("rate", (0.1,), (0.25,)), (None, True, None), (0.1, -0.15, -0.15)),
    ],
)
def test_fallbacks(fallback: Fallback, flags: tuple[bool | None, ...], played: tuple[float, ...]) -> None:
    """The policy says 0.5, -0.5, 0.5, -0.5 in turn; alone, row by row, and as one of two machines."""
    obs = np.array([[NAN if flag is None else float(flag), i] for i, flag in enumerate(flags)], np.float32)

    def choose(asked: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return np.where(asked[:, 1:] % 2 == 0, 0.5, -0.5).astype(np.float32), 2.0 * asked[:, :1]

    spaces = Spaces(2, (-1.0,), (1.0,))
    one = Controller(spaces, choose, fallback=fallback)
    assert [float(one.act(row).action[0]) for row in obs] == pytest.approx(played)
    one.reset()
    assert one.act(obs).action[:, 0] == pytest.approx(played)
    two = Controller(spaces, choose, fallback=fallback, rows=2)
    other = np.array([0.0, 0.0], dtype=np.float32)
    found = [two.act(np.stack([other, row])).action[:, 0].tolist() for row in obs]
    assert [alone for alone, _ in found] == [0.5] * len(flags)
    assert [watched for _, watched in found] == pytest.approx(played)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"fallback": "action"}, "fallback action needs fallback_action"),
        ({"fallback": "rate"}, "fallback rate needs fallback_rate"),
        ({"fallback": "hold", "fallback_action": (0.0,)}, "must be 2 finite numbers"),
        ({"fallback": "action", "fallback_action": (0.0, 11.0)}, "inside the action bounds"),
        ({"fallback": "rate", "fallback_rate": (0.1, 0.0)}, "fallback_rate must be > 0"),
        ({"fallback": "hold", "fallback_rate": (0.1, 0.1)}, "fallback_rate needs fallback rate, got .* hold"),
    ],
)
def test_a_fallback_that_makes_no_sense_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        fit_guard(rows()[:, :2], rows()[:, :2], GuardConfig(**settings), SPACES, "x", (0.0, 5.0))


def test_settings_and_data_that_do_not_fit_are_refused() -> None:
    for wrong in ({"centres": 257}, {"percentile": 0.0}, {"held_out_share": 1.0}, {"fallback": "stop"}):
        with pytest.raises(ConfigError, match=next(iter(wrong))):
            GuardConfig.build(wrong)
    with pytest.raises(DataError, match="obs"):
        guard_of_rows([lqr_log(episodes=3)], Spaces(2, (-1.0,), (1.0,)), GuardConfig())
    broken = lqr_log(episodes=3).with_columns({"obs": torch.full((30, 1), torch.nan)})
    with pytest.raises(DataError, match="finite"):
        guard_of_rows([broken], Spaces(1, (-1.0,), (1.0,)), GuardConfig())


@pytest.mark.parametrize(
    "changes",
    [
        {"centres": 0},
        {"centres": True},
        {"percentile": float("nan")},
        {"percentile": 101},
        {"threshold": 0.0},
        {"threshold": "1"},
        {"training_beyond": -0.1},
        {"points": "pixels"},
        {"fallback": {"kind": "explode", "action": None, "rate": None}},
        {"fallback": {"kind": "action", "action": [5.0, 5.0], "rate": None}},
        {"fallback": {"kind": "action", "action": None, "rate": None}},
        {"fallback": {"kind": "rate", "action": [0.0, 5.0], "rate": None}},
        {"fallback": {"kind": "hold", "action": [0.0, NAN], "rate": None}},
        {"fallback": {"kind": "hold", "action": "off", "rate": None}},
        {"fallback": None},
        {"rows": None},
    ],
)
def test_hostile_facts_are_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    values = json.loads(json.dumps({**FACTS.to_dict(), **changes}))
    with pytest.raises((UserError, TypeError)):
        GuardFacts.from_dict(values, SPACES)
    packed = {"facts": values, "tensors": by_hand().pack()["tensors"]}
    with pytest.raises((UserError, TypeError)):
        unpack_guard(packed, SPACES)


@pytest.mark.parametrize(
    "changes",
    [
        {"reach": torch.tensor([1.0, 0.0])},
        {"scale": torch.tensor([1.0, -1.0])},
        {"centres": torch.zeros(3, 2)},
        {"mean": torch.tensor([torch.nan, 0.0])},
        {"whitening": torch.zeros(2, 1)},
        {"reach": None},
    ],
)
def test_hostile_tensors_are_refused(changes: dict[str, Any]) -> None:
    packed = by_hand().pack()
    with pytest.raises(CheckpointError, match="guard tensor"):
        unpack_guard({**packed, "tensors": {**packed["tensors"], **changes}}, SPACES)


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("agent")
    agent = rl_training.TD3BC(tiny_config("td3_bc", folder, total_timesteps=5))
    agent.learn(quiet=True)
    return agent


def test_from_the_run_to_the_file_to_the_command_line(
    agent: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, log = str(agent.result.run_dir), tmp_path / "log.npz"
    rows = pendulum_rows()
    named = {"observations": rows.obs, "next_observations": rows.next_obs, "actions": rows.actions}
    np.savez(log, **named, rewards=rows.rewards, terminals=rows.dones)
    for suffix in (".onnx", ".safetensors"):
        file = tmp_path / f"policy{suffix}"
        settings = ["--guard-set", "fallback=action", "--guard-set", "fallback_action=[0.25]"]
        assert main(["export", "--checkpoint", run, "--out", str(file), "--guard", str(log), *settings]) == 0
        policy = load_policy(file)
        told = policy.predict_guarded([[0.5, 0.0, 0.0], [50.0, 0.0, 0.0]])
        assert told.flagged.tolist() == [False, True]
        assert policy.predict([50.0, 0.0, 0.0]) == told.action[1]  # predict stays the policy's own
        loop = policy.guarded()
        assert loop.act([0.5, 0.0, 0.0]).action == told.action[0]
        assert loop.act([50.0, 0.0, 0.0]).action == np.float32(0.25)
        capsys.readouterr()
        assert main(["predict", "--checkpoint", str(file), "--obs", "50, 0, 0"]) == 0
        shown = json.loads(capsys.readouterr().out)
        assert shown["action"] == [0.25] and shown["flagged"] is True and shown["novelty"] > 1.0
        np.save(tmp_path / "obs.npy", np.array([[0.5, 0.0, 0.0], [50.0, 0.0, 0.0]]))
        table = tmp_path / "actions.csv"
        arguments = ["--obs-file", str(tmp_path / "obs.npy"), "--out", str(table)]
        assert main(["predict", "--checkpoint", str(file), *arguments]) == 0
        header, first, second = table.read_text().splitlines()
        assert header == "action_0,novelty,flagged"
        assert first.endswith(",0") and second.startswith("0.25,") and second.endswith(",1")
        card = (tmp_path / f"policy{suffix}.md").read_text()
        assert "## Guard" in card and "k-means" in card and "of the training rows" in card
        assert "the action [0.25] (applied" in card and "nothing in the file notices them" not in card
    assert main(["export", "--checkpoint", run, "--out", str(file), "--guard", "run"]) == 0
    assert load_policy(file).guard_facts.source.startswith("random data of Pendulum-v1")
    assert main(["export", "--checkpoint", run, "--out", str(file), "--guard-set", "fallback=hold"]) == 2
    assert main(["export", "--checkpoint", run, "--out", str(file), "--guard", "none.csv"]) == 2


def test_a_damaged_guard_in_a_file_is_refused(agent: Any, tmp_path: Path) -> None:
    policy = agent.policy.snapshot()
    policy.guard = guard_of_rows([pendulum_rows()], policy.spaces, GuardConfig(centres=4))
    program = trace_policy(policy)
    metadata = describe_policy(BARE_STATE, policy, program, None)
    path = tmp_path / "policy.safetensors"
    for damage in ({"guard": None}, {"guard": {}}, {"guard": {**metadata["guard"], "threshold": -1}}):
        path.write_bytes(light_policy_bytes(program, {**metadata, **damage}))
        with pytest.raises(UserError, match=r"damaged|threshold"):
            load_policy(path)


def pendulum_rows() -> TransitionDataset:
    draws = np.random.default_rng(0).normal(size=(60, 3))
    following = np.roll(draws, -1, axis=0)
    return TransitionDataset(draws, np.zeros((60, 1)), np.zeros(60), following, np.arange(60) % 10 == 9)


def test_python_save_load_and_a_loop_of_ones_own(agent: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no guard"):
        agent.predict_guarded([0.0, 0.0, 0.0])
    guard = agent.make_guard(pendulum_rows(), fallback="hold", centres=16)
    wanted = agent.predict_guarded([[0.0, 0.0, 0.0], [99.0, 0.0, 0.0]])
    assert wanted.flagged.tolist() == [False, True]
    again = rl_training.TD3BC.load(agent.save(tmp_path / "agent.safetensors"))
    np.testing.assert_array_equal(again.predict_guarded([[0.0, 0.0, 0.0]]).novelty, wanted.novelty[:1])
    with agent.go_live(6, guard=guard, exploration_noise=0.0) as session:
        first = agent.act([0.0, 0.0, 0.0], first=True)
        agent.observe(0.0, [99.0, 0.0, 0.0])
        held = agent.act([99.0, 0.0, 0.0])
        assert session.watched.flagged and held == first
        agent.observe(0.0, [0.0, 0.0, 0.0])
        assert agent.act([0.5, 0.0, 0.0]) != first  # known ground again: the policy acts
        stored = session.collection.rows.state_dict(None)
        actions = next(value for name, value in stored.items() if name == "actions" or "actions" in name)
        np.testing.assert_allclose(np.asarray(actions)[:2].reshape(-1), first.repeat(2) / 2.0, atol=1e-6)


def test_after_a_restart_the_guard_holds_what_was_played_last(agent: Any) -> None:
    guard = agent.make_guard(pendulum_rows(), fallback="hold", centres=16)
    session = agent.go_live(6, dataset=None, guard=guard, exploration_noise=0.0)
    agent.act([0.0, 0.0, 0.0], first=True)
    agent.observe(0.0, [99.0, 0.0, 0.0], played=[0.75])
    session.save()
    for callback in session.run.callbacks:  # as if the process had ended here
        callback.close(session.run)
    again = rl_training.TD3BC.load(session.run.run_dir)
    with again.go_live(guard=guard):
        assert again.act([99.0, 0.0, 0.0]).tolist() == [0.75]
        again.observe(0.0, [99.0, 0.0, 0.0], terminated=True)
        assert again.act([99.0, 0.0, 0.0]).tolist() != [0.75]  # a new episode has nothing to hold


# ---- the first action, and observations that are not wholly there


def test_the_first_action_is_the_mean_of_the_log_or_the_given_one() -> None:
    log = lqr_log(episodes=100)
    spaces = Spaces(1, (-30.0,), (30.0,))
    mean = float(log.actions.double().mean())
    assert abs(mean) > 1e-4  # else it would say nothing
    for settings in ({}, {"fallback": "hold"}, {"fallback": "rate", "fallback_rate": (0.5,)}):
        guard = guard_of_rows([log], spaces, GuardConfig.build(settings))
        assert guard.facts.fallback.action == pytest.approx((mean,))
        assert unpack_guard(guard.pack(), spaces).facts == guard.facts
    given = guard_of_rows([log], spaces, GuardConfig(fallback="hold", fallback_action=(7.0,)))
    assert given.facts.fallback.action == (7.0,)
    shifted = log.with_columns({"actions": log.actions + 100.0})  # other units than the policy's
    with pytest.raises(DataError, match=r"mean action \[.*\] must lie inside the policy's bounds"):
        guard_of_rows([shifted], spaces, GuardConfig())
    assert guard_of_rows([shifted], spaces, GuardConfig(fallback_action=(7.0,))).facts.rows == 800


def test_a_run_that_rescaled_its_actions_needs_a_first_action(tmp_path: Path) -> None:
    """The mean of such a log is in other units, also where it happens to lie inside the bounds."""
    agent = rl_training.BC(tiny_config("bc", tmp_path, algo_kwargs={"out_of_bounds": "rescale"}))
    agent.learn(quiet=True)
    with pytest.raises(ConfigError, match=r"guard\.fallback_action must be given.*rescale"):
        agent.make_guard(pendulum_rows(), fallback="hold")
    assert agent.make_guard(pendulum_rows(), fallback_action=[1.5]).facts.fallback.action == (1.5,)
    with pytest.raises(ConfigError, match=r"guard\.fallback_rate must be given.*rescale"):
        agent.make_guard(pendulum_rows(), fallback="rate", fallback_action=[1.5])


def valve_rows() -> TransitionDataset:
    """A valve that stood at 0.5 on the average."""
    return pendulum_rows().with_columns({"actions": torch.linspace(0.0, 1.0, 60)[:, None]})


NEW = [99.0, 0.0, 0.0]
UNSEEN: tuple[Any, ...] = (NEW, [NAN, 0.0, 0.0], [None, 0.0, 0.0], [0.0, INF, 0.0], None)
"""Far from the data; a sensor that says NaN, nothing, infinity; no observation at all."""


@pytest.mark.parametrize("suffix", [".onnx", ".safetensors", None])
@pytest.mark.parametrize("first", UNSEEN, ids=str)
def test_a_loop_that_begins_with_a_flagged_observation(
    agent: Any, tmp_path: Path, suffix: str | None, first: Any
) -> None:
    agent.make_guard(valve_rows(), fallback="hold", centres=16)
    policy = agent.policy if suffix is None else load_policy(agent.export(tmp_path / f"policy{suffix}"))
    loop = policy.guarded()
    told = loop.act(first)
    assert told.flagged and told.action == pytest.approx(0.5, abs=1e-6)
    assert told.novelty == np.inf or first is NEW
    known = loop.act([0.0, 0.0, 0.0])
    assert not known.flagged and known.action == pytest.approx(policy.predict([0.0, 0.0, 0.0]))
    assert loop.act(first).action == known.action  # now there is something to hold
    loop.reset()
    assert loop.act(first).action == pytest.approx(0.5, abs=1e-6)
    batch = policy.predict_guarded([[0.0, 0.0, 0.0], [0.0, NAN, 0.0]])
    assert batch.flagged.tolist() == [False, True] and batch.novelty[1] == np.inf
    assert np.isfinite(batch.action[0]).all() and np.isnan(batch.action[1]).all()
    assert batch.action.dtype == batch.novelty.dtype == np.float32
    with pytest.raises(UserError, match="obs must be finite"):
        policy.predict([0.0, NAN, 0.0])  # nobody watches there
    with pytest.raises(UserError, match="must have shape"):
        loop.act([0.0, NAN])  # a mistake of the program, not of a sensor


def test_other_programs_find_all_of_it_in_the_files(agent: Any, tmp_path: Path) -> None:
    agent.make_guard(valve_rows(), fallback="hold", centres=16)
    file = agent.export(tmp_path / "policy.pt")
    extra = {METADATA_FILE: ""}
    with quiet_deprecation():
        script = torch.jit.load(str(file), _extra_files=extra)  # type: ignore[no-untyped-call]
    _, novelty = script(torch.tensor([[NAN, 0.0, 0.0], [0.0, 0.0, INF], [0.0, 0.0, 0.0]]))
    assert (novelty[:, 0] > 1.0).tolist() == [True, True, False]
    assert json.loads(extra[METADATA_FILE])["guard"]["fallback"]["action"] == pytest.approx([0.5], abs=1e-6)
    import onnxruntime

    session = onnxruntime.InferenceSession(str(agent.export(tmp_path / "policy.onnx")))
    rows = np.array([[NAN, 0.0, 0.0], [0.0, 0.0, INF], [0.0, 0.0, 0.0]], dtype=np.float32)
    (novelty,) = session.run(["novelty"], {"obs": rows})
    assert (novelty[:, 0] > 1.0).tolist() == [True, True, False]
    card = (tmp_path / "policy.pt.md").read_text()
    assert "the last action again; before there is one, [0.5" in card
    assert "| NaN, infinity or nothing in an observation | flagged, novelty is infinite" in card


@pytest.mark.parametrize("suffix", [".onnx", ".safetensors", None])
def test_predict_over_files_that_begin_with_gaps(
    agent: Any, tmp_path: Path, suffix: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    agent.make_guard(valve_rows(), fallback="hold", centres=16)
    saved = agent.save(tmp_path / "agent.safetensors")
    policy = str(saved if suffix is None else agent.export(tmp_path / f"policy{suffix}"))
    rows = np.array([[NAN, 0.0, 0.0], NEW, [0.0, 0.0, 0.0], [0.0, 0.0, INF]])
    own = float(agent.predict([0.0, 0.0, 0.0])[0])
    np.save(tmp_path / "obs.npy", rows)
    (tmp_path / "obs.csv").write_text(",0,0\n99,0,0\n0,0,0\n0,0,inf\n")
    (tmp_path / "obs.json").write_text("[[null, 0, 0], [99, 0, 0], [0, 0, 0], [0, 0, Infinity]]")
    for name in ("obs.npy", "obs.csv"):
        out = tmp_path / "actions.csv"
        options = ["predict", "--checkpoint", policy, "--obs-file", str(tmp_path / name)]
        assert main([*options, "--out", str(out)]) == 0
        table = np.loadtxt(out, delimiter=",", skiprows=1)
        np.testing.assert_allclose(table[:, 0], [0.5, 0.5, own, own], atol=1e-6)
        assert table[:, 2].tolist() == [1, 1, 0, 1] and table[0, 1] == table[3, 1] == np.inf
        capsys.readouterr()
        assert main(options) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["flagged"] == [True, True, False, True] and told["novelty"][0] is None
        np.testing.assert_allclose(np.ravel(told["action"]), [0.5, 0.5, own, own], atol=1e-6)
        assert main([*options, "--missing-values", "error"]) == 2
        assert main([*options, "--out", str(out), "--missing-values", "error"]) == 2
        assert "NaN or infinity" in capsys.readouterr().err
    assert main(["predict", "--checkpoint", policy, "--obs-file", str(tmp_path / "obs.json")]) == 0
    assert main(["predict", "--checkpoint", policy, "--obs", "nan, 0, 0"]) == 0


def test_a_live_loop_outlives_a_sensor(agent: Any) -> None:
    guard = agent.make_guard(valve_rows(), fallback="hold", centres=16)
    with agent.go_live(9, guard=guard, exploration_noise=0.0) as session:
        assert agent.act([NAN, 0.0, 0.0], first=True) == pytest.approx(0.5, abs=1e-6)
        assert session.watched.flagged and session.watched.novelty == np.inf
        agent.observe(NAN, None)  # what the reward is made of is not there either
        assert agent.act(None) == pytest.approx(0.5, abs=1e-6)
        agent.observe(1.0, [0.0, 0.0, 0.0])
        own = agent.act([0.0, 0.0, 0.0])
        agent.observe(2.0, [0.5, 0.0, 0.0])
        agent.update()
        agent.act([0.5, 0.0, 0.0])
        agent.observe(4.0, [NAN, 0.0, 0.0], played=[0.25])
        assert agent.act([NAN, 0.0, 0.0]).tolist() == [0.25]  # the gap has not ended the episode
        agent.observe(8.0, [0.0, 0.0, 0.0], terminated=True)
        agent.update()
        stored = session.collection.rows.state_dict(None)
        assert len(session.collection.rows) == 1 and session.collection.episodes == []
        np.testing.assert_allclose(np.asarray(stored["actions"]).reshape(-1), own / 2.0, atol=1e-6)
        with pytest.raises(UserError, match="reward must be finite"):
            agent.act([0.0, 0.0, 0.0])
            agent.observe(NAN, [0.0, 0.0, 0.0])
    with agent.go_live(3, exploration_noise=0.0), pytest.raises(UserError, match="obs must be finite"):
        agent.act([NAN, 0.0, 0.0])  # without a guard there is nothing to play instead


def test_files_of_earlier_versions_open_and_say_what_they_play_first(agent: Any, tmp_path: Path) -> None:
    agent.make_guard(valve_rows(), fallback="hold", centres=16)
    policy = agent.policy
    program = trace_policy(policy)
    metadata = describe_policy(BARE_STATE, policy, program, None)
    old = {**metadata["guard"], "fallback": {"kind": "hold", "action": None, "rate": None}}
    file = tmp_path / "old.safetensors"
    file.write_bytes(light_policy_bytes(program, {**metadata, "guard": old}))
    with pytest.warns(UserWarning, match=r"no first action.*the middle of the bounds, \[0\.0\], is played"):
        opened = load_policy(file)
    assert opened.guarded().act(NEW).action == 0.0
    with pytest.warns(UserWarning, match="no first action"):
        unpack_guard({"facts": old, "tensors": policy.guard.pack()["tensors"]}, policy.spaces)


def test_the_rate_of_a_guard_is_how_far_actions_go_in_nine_of_ten_logged_steps() -> None:
    """Ten rows to an episode; within one, the first action moves by 1 and once by 5, the second one never."""
    count = 1000
    ends = np.arange(count) % 10 == 9
    moves = np.where(np.arange(count) % 100 == 5, 5.0, 1.0)
    first = np.concatenate([np.cumsum(each) + 20.0 * n % 50 for n, each in enumerate(moves.reshape(-1, 10))])
    actions = np.stack([first, np.full(count, 3.0)], axis=1)
    data = TransitionDataset(
        np.zeros((count, 1)),
        actions,
        np.zeros(count),
        np.zeros((count, 1)),
        np.zeros(count),
        truncations=ends,
    )
    spaces, config = Spaces(1, (0.0, 0.0), (100.0, 10.0)), GuardConfig(fallback="rate")
    assert guard_of_rows([data], spaces, config).facts.fallback.rate == (1.0, pytest.approx(0.1))
    stated = GuardConfig(fallback="rate", fallback_rate=(2.0, 3.0))
    assert guard_of_rows([data], spaces, stated).facts.fallback.rate == (2.0, 3.0)
    assert guard_of_rows([data], spaces, GuardConfig(fallback="hold")).facts.fallback.rate is None
    mixed = TransitionDataset.from_store(data.store, ordered=False, info=data.info)
    with pytest.raises(ConfigError, match=r"guard\.fallback_rate must be given: the rows of .* in no order"):
        guard_of_rows([mixed], spaces, config)
    assert guard_of_rows([mixed], spaces, stated).facts.fallback.rate == (2.0, 3.0)
    rarely = data.actions.clone()
    rarely[:, 0] = torch.from_numpy((np.arange(count) % 100 > 50) * 7.0)  # set once in ten episodes
    seldom = TransitionDataset(data.obs, rarely, data.rewards, data.next_obs, data.dones, truncations=ends)
    assert usual_change([seldom], spaces)[0] == pytest.approx(7.0)
    pump = Spaces.of(1, [Box(0.0, 100.0), Choice(("off", "on"))])
    assert usual_change([data], pump) == (1.0, 0.0), "between two levels there is nothing: the last one stays"
    fallback = Fallback("rate", (5.0, 0.0), (1.0, 0.0))
    fallback.check(pump)
    wanted, last = np.array([[9.0, 1.0]], dtype=np.float32), np.array([[4.0, 0.0]], dtype=np.float32)
    assert fallback.played(wanted, np.array([True]), last).tolist() == [[5.0, 0.0]]
