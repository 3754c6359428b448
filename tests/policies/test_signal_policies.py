"""Policies that are asked with signals, and whose actions may only move so fast: the same everywhere."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from rl_training.algorithms.recipe import get_recipe
from rl_training.config.run import TrainConfig
from rl_training.core.errors import UserError
from rl_training.core.over_log import rows_since_start
from rl_training.core.signals import Program, Signals
from rl_training.core.spaces import Spaces, unit_spaces
from rl_training.core.transforms import RewardTransform
from rl_training.policies.acting import Controller
from rl_training.policies.export.torchscript import quiet_deprecation
from rl_training.policies.export.trace import trace_policy
from rl_training.policies.files import load_policy
from rl_training.policies.guard import Fallback
from rl_training.policies.inputs import RateLimit, SignalMemory
from rl_training.policies.policy import Policy, pack_policy, unpack_policy
from rl_training.policies.torch_signals import TorchSignals
from rl_training.runs.export import export_policy
from rl_training.runs.live import LiveCollection
from rl_training.runs.saved import open_run
from rl_training.runs.train import train
from rl_training.runtime import replay
from rl_training.runtime.record import Rollout

COUNT = "toy_envs:Count-v0"
SPACES = Spaces(3, (-2.0,), (2.0,))
FIRST = 0.25
COLUMNS, ACTIONS = ("offset", "steps", "done"), ("a",)
PROGRAM = Program(
    ("steps", "lags(a, 2)", "lag(done, 3)", "mean(steps, 2)", "sum(done - 0.1, -1, 1)", "steps() * offset"),
    COLUMNS,
    ACTIONS,
)
CPU = torch.device("cpu")


def make_learner(rate: float | None = None, algo: str = "sac") -> Any:
    recipe = get_recipe(algo)
    config = recipe.settings.build({"hidden_sizes": [8]})
    learner = recipe.build_learner(config, unit_spaces(PROGRAM.width, 1), seed=0, device=CPU)
    rates = () if rate is None else (rate,)
    learner.policy.memory = SignalMemory.of(Signals(PROGRAM, (FIRST,), rates))
    learner.policy.set_units(SPACES)
    return learner


@pytest.fixture
def policy() -> Policy:
    found: Policy = make_learner().policy.snapshot()
    return found


def signals_of(obs: Any, actions: Any, ends: Any) -> Any:
    return PROGRAM.over_log(obs, actions, rows_since_start(ends), [FIRST])


def test_a_controller_asks_with_the_signals_of_the_log_that_it_makes(policy: Policy) -> None:
    rng = np.random.default_rng(0)
    obs = rng.normal(size=(20, 3)).astype(np.float32)
    ends = np.zeros(20, dtype=bool)
    ends[[7, 19]] = True
    controller, done = policy.controller(), []
    for row in range(20):
        applied = [1.5] if row in (3, 11) else None  # an operator overrode the step before
        if applied:
            done[-1] = applied
        done.append(controller.act(obs[row], applied).action)
        if ends[row]:
            controller.reset()
    asked = signals_of(obs, np.array(done, np.float32), ends)
    own = np.array([each for row, each in enumerate(done) if row not in (2, 10)])
    np.testing.assert_allclose(own, np.delete(policy.act(asked), (2, 10), axis=0), atol=1e-6)


def test_collected_rows_are_the_signals_of_what_was_seen_and_done() -> None:
    settings: Any = {"algo": "sac", "env_id": COUNT, "seed": 0, "total_timesteps": 100, "output_dir": "."}
    config = TrainConfig(**settings, env_kwargs={"truncate_at": 4})
    learner = make_learner(rate=0.5)
    spaces = Spaces(PROGRAM.width, (-2.0,), (2.0,))
    online = replay.OnlineCollection(
        [config],
        config.run_config(),  # type: ignore[arg-type]
        COUNT,
        replay.StepRows(100, spaces, 1, CPU),
        replay.Units(RewardTransform()),
        replay.Exploration([0], 0.0, CPU),
        learning_starts=5,
        memory=learner.policy.memory,
    )
    seen = []
    for step in range(12):
        seen.append(online.collectors[0].observations[0].copy())
        online.step(learner, step)
    buffer: Any = online.rows
    rows = {name: each.numpy() for name, each in buffer.buffer.gather(torch.arange(12)).items()}
    online.close()
    done, ends = SPACES.to_env(rows["actions"]), np.arange(12) % 4 == 3
    np.testing.assert_allclose(rows["obs"], signals_of(np.array(seen), done, ends), atol=1e-6)
    np.testing.assert_allclose(rows["obs"][1:4], rows["next_obs"][:3], atol=1e-6)
    before = np.where(rows_since_start(ends) == 0, FIRST, np.concatenate([[0.0], done[:-1, 0]]))
    assert (np.abs(done[:, 0] - before) <= 0.5 + 1e-6).all()  # random ones of the first steps too


def test_data_and_live_collection_keep_to_the_rate() -> None:
    learner = make_learner(rate=0.1)
    frozen = learner.policy.snapshot()
    with Rollout(COUNT, {"truncate_at": 4}, 0, policy=frozen, noise=1.0, random_share=0.5) as rollout:
        columns = rollout.columns(12, lambda name, shape, dtype: np.empty(shape, dtype))
        rollout.fill(columns)
    first = np.arange(12) % 4 == 0
    before = np.where(first, FIRST, np.concatenate([[0.0], columns["actions"][:-1, 0]]))
    assert np.abs(columns["actions"][:, 0] - before).max() <= 0.1 + 1e-6
    rows = replay.StepRows(100, Spaces(PROGRAM.width, (-2.0,), (2.0,)), 1, CPU)
    loop = LiveCollection(
        SPACES, rows, replay.Units(RewardTransform()), replay.Exploration([0], 0.0, CPU), learner
    )
    last = FIRST
    for _ in range(5):
        action = float(loop.act([0.0, 1.0, 2.0]).action[0])
        assert abs(action - last) <= 0.1 + 1e-6
        last = action
        loop.observe(0.0, [0.0, 1.0, 2.0], False, False)


# ---- rate limits


def test_an_action_moves_at_most_by_its_rate() -> None:
    """N22"""
    program = Program(("x", "lag(valve)", "lag(pump)"), ("x",), ("valve", "pump"))
    limit = RateLimit.of(Signals(program, (0.0, 0.0), (10.0, 100.0)))
    spaces = Spaces(1, (-100.0, -100.0), (100.0, 100.0))
    assert limit is not None
    wanted, before = np.array([[80.0, -20.0]], np.float32), np.array([[50.0, 0.0]], np.float32)
    np.testing.assert_array_equal(limit.limited(wanted, before, spaces), [[60, -20]])
    one = RateLimit.of(Signals(program, (0.0, 0.0), (10.0, None)))
    assert one is not None and RateLimit.of(Signals(program)) is None
    np.testing.assert_array_equal(one.limited(wanted, before, spaces), [[60, -20]])
    outside = np.array([[130.0, 0.0]], np.float32)  # somebody moved it there: it counts as on the bound
    np.testing.assert_array_equal(one.limited(-wanted, outside, spaces), [[90, 20]])


def test_the_policy_itself_keeps_to_the_rate_so_that_it_is_judged_as_it_runs() -> None:
    policy = make_learner(rate=0.1).policy.snapshot()
    free = make_learner().policy.snapshot()
    rng = np.random.default_rng(0)
    asked = rng.normal(size=(50, PROGRAM.width)).astype(np.float32)
    last = np.clip(asked[:, 1:2], -2, 2)
    wanted = np.clip(free.act(asked), last - np.float32(0.1), last + np.float32(0.1))
    np.testing.assert_allclose(policy.act(asked), wanted, atol=1e-7)
    assert (policy.act(asked) != free.act(asked)).any()
    controller = policy.controller()
    actions = controller.act(rng.normal(size=(20, 3))).action[:, 0]
    assert np.abs(np.diff(actions, prepend=FIRST)).max() <= 0.1 + 1e-6
    controller.reset([1.0])
    assert abs(controller.act([0, 0, 0]).action[0] - 1.0) <= 0.1 + 1e-6


def test_a_fallback_keeps_to_the_rate() -> None:
    memory = SignalMemory.of(Signals(PROGRAM, (FIRST,), (0.5,)))

    def choose(asked: Any) -> tuple[Any, Any]:
        return np.full((len(asked), 1), 0.3, np.float32), np.full((len(asked), 1), 5.0, np.float32)

    controller = Controller(SPACES, choose, memory, Fallback("action", (2.0,)))
    assert [float(controller.act([1, 2, 3]).action[0]) for _ in range(4)] == [0.75, 1.25, 1.75, 2.0]


# ---- what has no value, and what a file says


def test_a_signal_without_a_value_is_refused_or_flagged() -> None:
    memory = SignalMemory.of(Signals(Program(("x", "1 / x", "sum(1 / x)"), ("x",), ("a",)), (0.0,)))
    spaces = Spaces(1, (-1.0,), (1.0,))

    def choose(asked: Any) -> tuple[Any, Any]:
        return asked[:, 1:2] * 0.1, np.zeros((len(asked), 1), np.float32)

    plain = Controller(spaces, choose, memory)
    with pytest.raises(
        UserError, match="has no value for what was observed, as where a formula divides by zero"
    ):
        plain.act([0.0])
    assert plain.act([2.0]).action == np.float32(0.05)
    guarded = Controller(spaces, choose, memory, Fallback("action", (0.7,)))
    assert guarded.act([0.0]).flagged and not guarded.act([2.0]).flagged
    np.testing.assert_array_equal(guarded.state, [[0.5]])  # nothing of the row without a value is kept


def test_a_checkpoint_holds_the_texts_of_signals_and_nothing_that_runs(policy: Policy) -> None:
    packed = pack_policy(policy)
    facts = packed["memory"]["settings"]
    assert facts["signals"] == list(PROGRAM.texts) and facts["state_size"] == PROGRAM.layout.size == 7
    again = unpack_policy(packed).snapshot()
    rows = np.random.default_rng(0).normal(size=(6, 3))
    np.testing.assert_array_equal(again.controller().act(rows).action, policy.controller().act(rows).action)
    for name, value, told in (
        ("signals", ["__import__('os').system('true')"], "something else than a name is called"),
        ("state_size", 3, "signals with a state of 3 numbers come from another version: here it has 7"),
        ("first_action", [float("nan")], "first_action must be 1 finite numbers"),
        ("rates", [-1.0], "the rate of a must be > 0, got -1"),
    ):
        other = copy.deepcopy(packed)
        other["memory"]["settings"][name] = value
        with pytest.raises(UserError) as problem:
            unpack_policy(other)
        assert told in str(problem.value)


def test_torch_steps_as_numpy_does_and_can_be_differentiated() -> None:
    rng = np.random.default_rng(0)
    texts = ("x / (1 + y * y)", "x % 0.7", "x ** 2 if x > y else -y", "min(x, y, 0) or y < 0", "not (x <= y)")
    timed = ("lags(x, 2)", "lag(a, 3)", "mean(y, 3)", "sum(x * lag(a), -1, 1)")
    program = Program((*texts, *timed), ("x", "y"), ("a",))
    state, first = np.zeros((5, program.layout.size)), np.ones(5, dtype=bool)
    there = TorchSignals(program)
    for _ in range(4):
        obs, last = (rng.normal(size=(5, width)).astype(np.float32) for width in (2, 1))
        seen = torch.from_numpy(obs).requires_grad_()
        found, after = there.step(
            seen, torch.from_numpy(last), torch.from_numpy(state), torch.from_numpy(first)[:, None]
        )
        wanted, state = program.step(obs, last, state, first)
        np.testing.assert_allclose(found.detach().numpy(), wanted, rtol=1e-6, atol=1e-6)
        np.testing.assert_allclose(after.detach().numpy(), state, rtol=1e-12, atol=1e-12)
        found.sum().backward()
        assert seen.grad is not None and seen.grad.isfinite().all()
        first = rng.random(5) < 0.3
        state[first] = 0.0


# ---- whole runs


def test_a_run_with_history_in_an_environment_resumes_in_the_middle_of_an_episode(tmp_path: Path) -> None:
    common: Any = {
        "algo": "sac",
        "env_id": COUNT,
        "seed": 1,
        "eval_episodes": 1,
        "output_dir": str(tmp_path),
        "env_kwargs": {"truncate_at": 7},
    }
    kwargs: Any = {
        "history": 2,
        "rate": {"action_0": 0.5},
        "learning_starts": 3,
        "hidden_sizes": [4],
        "batch_size": 4,
    }
    whole = train(TrainConfig(**common, total_timesteps=20, algo_kwargs=kwargs), quiet=True)
    run = open_run(whole.run_dir)
    memory: Any = run.policy.memory
    assert memory.program.names[:4] == ("obs_0", "obs_1", "obs_2", "lag(action_0, 1)")
    assert memory.feature_dim == 3 + 3 * 2 + 2 and memory.first_action == (0.0,)
    half = train(TrainConfig(**common, total_timesteps=11, algo_kwargs=kwargs), quiet=True)
    from rl_training.runs.resume import resume_training

    resumed = resume_training(half.run_dir, total_timesteps=20, env=COUNT, quiet=True)
    assert resumed.metrics["eval_return_mean"] == whole.metrics["eval_return_mean"]
    left, right = (
        open_run(each.run_dir).policy.act(np.ones((1, 11), np.float32)) for each in (whole, resumed)
    )
    np.testing.assert_array_equal(left, right)


# ---- files


@pytest.fixture
def exported(tmp_path: Path) -> Any:
    """A policy with every kind of signal, a rate and a distribution, in the three formats."""
    texts = ("x", "lags(a, 2)", "lag(x, 3)", "mean(y, 3)", "sum(x - y, -1, 1)", "steps() % 3 < 2 and y != 0")
    more = (
        "where(x > y, x ** 2, -y / (2 + abs(x)))",
        "lag(mean(x, 2), 2)",
        "clip(x, -0.5, 0.5)",
        "min(x, y) == x",
    )
    program = Program((*texts, *more), ("x", "y"), ("a",))
    recipe = get_recipe("sac")
    config = recipe.settings.build({"hidden_sizes": [8]})
    learner = recipe.build_learner(config, unit_spaces(program.width, 1), seed=0, device=CPU)
    learner.policy.memory = SignalMemory.of(Signals(program, (FIRST,), (0.3,)))
    spaces = Spaces(2, (-2.0,), (2.0,))
    learner.policy.set_units(spaces)
    own = learner.policy.snapshot()
    state: Any = {
        "config": TrainConfig(algo="sac", env_id=COUNT, total_timesteps=1, output_dir=".").to_dict(),
        "algo": "sac",
        "algo_class": "SAC",
        "dataset": None,
        "counters": {"global_step": 0, "gradient_steps": 0},
        "versions": {},
        "results": {},
        "reference": None,
    }
    files = [tmp_path / f"policy{suffix}" for suffix in (".safetensors", ".onnx", ".pt")]
    for file in files:
        export_policy(own, state, file, distribution=True)
    return own, files


def test_every_file_steps_as_the_log_and_the_live_policy_do(exported: Any) -> None:
    """log = step by step = numpy = ONNX, to 1e-6; TorchScript with its own state."""
    policy, (light, onnx, script) = exported
    rng = np.random.default_rng(3)
    obs = rng.normal(size=(24, 2)).astype(np.float32)
    ends = np.arange(24) % 9 == 8
    loaded = [policy, load_policy(light), load_policy(onnx)]
    done = []
    for each in loaded:
        controller, actions = each.controller(), []
        for row, over in zip(obs, ends, strict=True):
            actions.append(controller.act(row).action)
            if over:
                controller.reset()
        done.append(np.array(actions))
    np.testing.assert_allclose(done[1], done[0], atol=1e-6)
    np.testing.assert_allclose(done[2], done[0], atol=1e-6)
    program = policy.memory.program
    asked = program.over_log(obs, done[0], rows_since_start(ends), [FIRST])
    np.testing.assert_allclose(policy.act(asked), done[0], atol=1e-6)
    with quiet_deprecation():
        module = torch.jit.load(script)  # type: ignore[no-untyped-call]
    state, last = torch.zeros(1, policy.memory.state_size, dtype=torch.float64), torch.tensor([[FIRST]])
    for row, over, wanted in zip(obs, ends, done[0], strict=True):
        first = torch.tensor([[float(over is None or not state.any())]])
        out = module(torch.from_numpy(row[None]), last, first, state)
        np.testing.assert_allclose(out[0].numpy()[0], wanted, atol=1e-6)
        last, state = out[0], out[-1]
        if over:
            state, last = torch.zeros_like(state), torch.tensor([[FIRST]])


def test_an_onnx_file_with_a_past_says_what_it_takes(exported: Any) -> None:
    import onnxruntime

    policy, (light, onnx, _) = exported
    session = onnxruntime.InferenceSession(str(onnx))
    size = policy.memory.state_size
    inputs = {each.name: (each.shape[-1], each.type) for each in session.get_inputs()}
    assert inputs == {
        "obs": (2, "tensor(float)"),
        "previous_action": (1, "tensor(float)"),
        "first": (1, "tensor(float)"),
        "state": (size, "tensor(double)"),
    }
    assert [each.name for each in session.get_outputs()] == ["action", "mean", "log_std", "next_state"]
    with pytest.raises(UserError, match="step it with controller"):
        load_policy(light).predict([0.0, 1.0])
    card = light.with_name(light.name + ".md").read_text()
    assert "lag(a, 2)" in card and "previous_action" in card


def test_a_plain_file_keeps_its_signature(tmp_path: Path) -> None:
    recipe = get_recipe("sac")
    learner = recipe.build_learner(recipe.settings.build({"hidden_sizes": [4]}), SPACES, seed=0, device=CPU)
    program = trace_policy(learner.policy.snapshot())
    assert program.inputs == () and list(program.outputs) == ["action"]
