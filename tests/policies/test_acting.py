"""A policy through time, with a memory that nobody in the package knows: it follows what was done."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from rl_training.algorithms.recipe import get_recipe
from rl_training.config.run import TrainConfig
from rl_training.core.errors import CheckpointError, UserError
from rl_training.core.spaces import Spaces, unit_spaces
from rl_training.core.transforms import RewardTransform
from rl_training.policies import Policy, register_memory
from rl_training.policies import policy as policies
from rl_training.policies.acting import Acting, Controller
from rl_training.policies.export.trace import trace_policy
from rl_training.policies.files import predict_file
from rl_training.policies.guard import Fallback
from rl_training.runs.live import LiveCollection
from rl_training.runtime import replay
from rl_training.runtime.evaluate import evaluate_policy
from rl_training.runtime.record import Rollout

COUNT = "toy_envs:Count-v0"
SPACES = Spaces(3, (-2.0,), (2.0,))
FIRST = 0.25
CPU = torch.device("cpu")


class Remembering:
    """Observation, last action, steps so far; an observation of `Count` is (offset, steps, last action)."""

    kind: ClassVar[str] = "test_remembering"
    feature_dim, state_size = 5, 1

    def __init__(self, first_action: tuple[float, ...] = (FIRST,)) -> None:
        self.first_action = tuple(first_action)

    def features(self, obs: Any, last_action: Any, state: Any, first: Any) -> tuple[Any, Any]:
        steps = np.where(first[:, None], np.float32(0.0), state + np.float32(1.0))
        return np.concatenate([obs, last_action, steps], axis=1), steps

    def to_dict(self) -> dict[str, Any]:
        return {"first_action": list(self.first_action)}


def make_learner(algo: str = "sac") -> Any:
    recipe = get_recipe(algo)
    learner = recipe.build_learner(
        recipe.settings.build({"hidden_sizes": [8]}), unit_spaces(5, 1), seed=0, device=CPU
    )
    learner.policy.memory = Remembering()
    learner.policy.set_units(SPACES)
    return learner


@pytest.fixture
def policy() -> Policy:
    remembering: Policy = make_learner().policy.snapshot()
    return remembering


def assert_past(asked: Any, done: Any = None) -> None:
    """Every row says what was done before it, never what was done on it, and begins anew with an episode."""
    asked, first = np.asarray(asked), np.asarray(asked)[:, 1] == 0
    assert first.any() and not first.all()
    np.testing.assert_array_equal(asked[:, 3], np.where(first, np.float32(FIRST), asked[:, 2]))
    np.testing.assert_array_equal(asked[:, 4], asked[:, 1])
    if done is not None:
        assert not np.isclose(asked[:, 3], np.asarray(done).ravel()).any()


def noted(policy: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All that the policy is asked with from now on."""
    asked: list[Any] = []
    own = getattr(policy, name)
    monkeypatch.setattr(policy, name, lambda obs, *rest: (asked.append(obs.copy()), own(obs, *rest))[1])
    return asked


# ---- the controller


def test_memory_follows_what_was_done_not_what_was_meant(policy: Policy) -> None:
    controller = policy.controller()
    own = policy.act(np.array([[1, 2, 3, FIRST, 0]], np.float32))[0]
    step = controller.act([1, 2, 3])
    assert step.action == own and np.isnan(step.novelty) and not step.flagged
    for applied, before in ((None, float(own[0])), ([1.5], 1.5)):
        state = copy.deepcopy(controller.state_dict())
        wanted = policy.act(np.array([[4, 5, 6, before, 1]], np.float32))[0]
        assert controller.act([4, 5, 6], applied).action == wanted
        controller.load_state_dict(state)
    controller.reset([-0.5])
    assert controller.act([1, 2, 3]).action == policy.act(np.array([[1, 2, 3, -0.5, 0]], np.float32))[0]
    with pytest.raises(UserError, match="applied must be the action that was played, 1 finite numbers, got"):
        controller.act([1, 2, 3], [np.nan])


def test_rows_are_machines_of_their_own_and_a_batch_of_one_machine_is_its_steps(policy: Policy) -> None:
    obs = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
    both, wanted = policy.controller(2), []
    for time, rows in enumerate(obs):
        if time == 3:
            both.reset(rows=np.array([False, True]))
        wanted.append(both.act(rows).action[:, 0])
    wanted = np.array(wanted)
    left, right = policy.controller(), policy.controller()
    np.testing.assert_allclose(left.act(obs[:, 0]).action[:, 0], wanted[:, 0], atol=1e-6)
    np.testing.assert_allclose(right.act(obs[:3, 1]).action[:, 0], wanted[:3, 1], atol=1e-6)
    right.reset()
    np.testing.assert_allclose(right.act(obs[3:, 1]).action[:, 0], wanted[3:, 1], atol=1e-6)
    with pytest.raises(UserError, match=r"one row for each of 2, got shape \(3, 3\)"):
        both.act(obs[:3, 0])


def test_a_saved_controller_goes_on_in_the_middle_of_an_episode(policy: Policy) -> None:
    obs = np.random.default_rng(0).normal(size=(6, 2, 3)).astype(np.float32)
    one, other = policy.controller(2), policy.controller(2)
    for rows in obs[:3]:
        one.act(rows)
    other.load_state_dict(one.state_dict())
    for rows in obs[3:]:
        np.testing.assert_array_equal(one.act(rows).action, other.act(rows).action)
    with pytest.raises(CheckpointError, match="as many rows and of the same memory"):
        policy.controller(3).load_state_dict(one.state_dict())


def test_an_observation_with_gaps_is_not_remembered_but_what_was_done_is() -> None:
    asked: list[Any] = []

    def choose(rows: Any) -> tuple[Any, Any]:
        asked.append(rows)
        return np.ones((len(rows), 1), np.float32), np.zeros((len(rows), 1), np.float32)

    controller = Controller(SPACES, choose, Remembering(), Fallback("hold", (0.5,)))
    assert controller.act(None).action == 0.5  # there is nothing to hold, and nothing to begin with
    controller.act([7, 7, 7], [-1.0])
    controller.act([np.nan, 0, 0])
    controller.act([8, 8, 8])
    np.testing.assert_array_equal(np.concatenate(asked), [[7, 7, 7, -1, 0], [8, 8, 8, 1, 1]])


def test_who_has_a_memory_says_what_to_use(policy: Policy) -> None:
    for ask in (policy.predict, policy.predict_guarded):
        with pytest.raises(UserError, match=r"step it with controller = policy\.controller\(\)"):
            ask([1.0, 2.0, 3.0])
    with pytest.raises(
        UserError, match="files hold the past as signals, not as the memory 'test_remembering'"
    ):
        trace_policy(policy)
    with pytest.raises(UserError, match="takes 5 observations and gives 1 actions, the spaces have 3 and 1"):
        Policy(policy.actor, SPACES)


def test_a_checkpoint_holds_the_memory_of_a_policy(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    packed = policies.pack_policy(policy)
    monkeypatch.setattr(policies.MEMORIES, "_parts", {})
    with pytest.raises(CheckpointError, match="needs the memory 'test_remembering', which is not registered"):
        policies.unpack_policy(packed)
    with pytest.raises(UserError, match="takes a class with a kind"):
        register_memory(Remembering())  # type: ignore[arg-type]
    register_memory(Remembering)
    again = policies.unpack_policy(packed).snapshot()
    rows = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
    np.testing.assert_array_equal(again.controller().act(rows).action, policy.controller().act(rows).action)


# ---- everything that acts


def test_evaluation_steps_with_memory(policy: Policy, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = noted(policy, "act", monkeypatch)
    result = evaluate_policy(policy, COUNT, {"truncate_at": 4}, 11, seed=0)
    assert_past(np.concatenate([rows[:3] for rows in asked[:8]]))
    total = 0.0
    for player in range(
        8
    ):  # rewards are steps + actions, and an action is the next observation's third number
        rows = np.array([each[player] for each in asked[:4]])
        total = float(policy.act(rows).sum()) + 1 + 2 + 3 + 4
        assert result.returns[player] == pytest.approx(total, abs=1e-5)


def test_files_of_consecutive_rows(policy: Policy, tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    np.save(tmp_path / "obs.npy", rows)
    assert predict_file(policy, tmp_path / "obs.npy", tmp_path / "out.npy") == 9
    np.testing.assert_array_equal(np.load(tmp_path / "out.npy"), policy.controller().act(rows).action)


def collection(num_envs: int = 2) -> tuple[Any, Any]:
    settings: Any = {"algo": "sac", "env_id": COUNT, "seed": 0, "total_timesteps": 100, "output_dir": "."}
    config = TrainConfig(**settings, num_envs=num_envs, env_kwargs={"truncate_at": 4})
    learner = make_learner()
    rows = replay.StepRows(100, Spaces(5, (-2.0,), (2.0,)), 1, CPU)
    online = replay.OnlineCollection(
        [config],
        config.run_config(),  # type: ignore[arg-type]
        COUNT,
        rows,
        replay.Units(RewardTransform()),
        replay.Exploration([0], 0.0, CPU),
        memory=learner.policy.memory,
    )
    return online, learner


def stored(online: Any) -> dict[str, Any]:
    batch = online.rows.buffer.gather(torch.arange(len(online.rows)))
    return {name: values.numpy() for name, values in batch.items()}


def test_collected_rows_hold_what_the_policy_was_asked_with() -> None:
    online, learner = collection()
    for step in range(10):
        online.step(learner, step)
    rows = stored(online)
    online.close()
    assert_past(rows["obs"], SPACES.to_env(rows["actions"]))
    following, done = rows["next_obs"], SPACES.to_env(rows["actions"])
    np.testing.assert_array_equal(following[:, 2:3], done)
    np.testing.assert_array_equal(following[:, 3:4], done)
    np.testing.assert_array_equal(following[:, 4], following[:, 1])


def test_a_leak_of_the_action_to_be_chosen_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Leaking(Acting):
        def features(self, obs: Any) -> Any:
            self.asked = super().features(obs)
            return self.asked

        def follow(self, action: Any) -> None:
            self.asked[:, 3:4] = action
            super().follow(action)

    monkeypatch.setattr(replay, "Acting", Leaking)
    with pytest.raises(AssertionError):
        test_collected_rows_hold_what_the_policy_was_asked_with()


def test_a_resumed_collection_goes_on_in_the_middle_of_an_episode() -> None:
    whole, learner = collection()
    for step in range(6):
        whole.step(learner, step)
    state = copy.deepcopy(whole.state_dict(None, with_replay=True))
    resumed, _ = collection()
    resumed.load_state_dict(state)
    for step in range(6, 10):
        whole.step(learner, step)
        resumed.step(learner, step)
    left, right = stored(whole), stored(resumed)
    for name, values in left.items():
        np.testing.assert_array_equal(values, right[name])
    whole.close()
    resumed.close()


def test_data_collection_remembers_the_noise_that_was_played(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = noted(policy, "act_unit", monkeypatch)
    with Rollout(COUNT, {"truncate_at": 4}, 0, policy=policy, noise=0.3) as rollout:
        columns = rollout.columns(10, lambda name, shape, dtype: np.empty(shape, dtype))
        rollout.fill(columns, 0, 6)
        state = copy.deepcopy(rollout.state_dict())
        rollout.fill(columns, 6, 10)
    with Rollout(COUNT, {"truncate_at": 4}, 0, policy=policy, noise=0.3) as again:
        again.load_state_dict(state)
        again.fill(columns, 6, 10)
    asked_rows = np.concatenate(asked)
    assert_past(asked_rows[:10], columns["actions"])
    np.testing.assert_array_equal(asked_rows[6:10], asked_rows[10:])
    np.testing.assert_array_equal(columns["obs"], asked_rows[:10, :3])


def live(learner: Any) -> LiveCollection:
    rows = replay.StepRows(100, Spaces(5, (-2.0,), (2.0,)), 1, CPU)
    return LiveCollection(
        SPACES, rows, replay.Units(RewardTransform()), replay.Exploration([0], 0.0, CPU), learner
    )


def test_a_live_loop_remembers_what_the_machine_really_did() -> None:
    learner = make_learner()
    loop, resumed = live(learner), live(learner)
    done, obs = [], [[0.5, 0.0, 0.0]]
    for time in range(8):
        loop.act(obs[-1])  # nothing comes of this one
        action = loop.act(obs[-1]).action
        played = [1.5] if time % 2 else None
        done.append(float(action[0]) if played is None else 1.5)
        over = time == 4
        following = [0.5, float(loop.current.length + 1), done[-1]]
        loop.observe(1.0, following, False, over, played)
        obs.append([0.5, 0.0, 0.0] if over else following)
        if time == 5:
            resumed.load_state_dict(copy.deepcopy(loop.state_dict(None, with_replay=True)))
    rows = stored(loop)
    assert_past(rows["obs"], None)
    np.testing.assert_allclose(rows["obs"][1:5, 3], done[:4], rtol=1e-6)
    np.testing.assert_allclose(rows["next_obs"][:, 3], done, rtol=1e-6)
    resumed.act(obs[6])
    resumed.observe(1.0, obs[7], False, False)
    np.testing.assert_array_equal(stored(resumed)["obs"][6], rows["obs"][6])
