"""The collector: true rows, none across a reset, exact restores, and clear words when something breaks."""

import multiprocessing
import os
import signal
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.vector import AutoresetMode

from rl_training.core.errors import EnvironmentProblem
from rl_training.core.spaces import Choice
from rl_training.data.fields import Field
from rl_training.runtime import collect
from rl_training.runtime.collect import Collector, Steps
from rl_training.runtime.envs import FAULT, episode_seed, kept_infos, make_env, spaces_of

COUNT, WALK, WHIM, ODD = (f"toy_envs:{name}-v0" for name in ("Count", "Walk", "Whim", "Odd"))
FIELDS = ("obs", "actions", "rewards", "next_obs", "terminated", "truncated")


def collector(env_id: str, num_envs: int = 1, seed: int = 0, **options: Any) -> Collector:
    async_envs = options.pop("async_envs", False)
    return Collector(env_id, options, num_envs, seed, async_envs=async_envs)


def assert_same_steps(first: list[Steps], second: list[Steps]) -> None:
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        for name in FIELDS:
            x, y = getattr(a, name), getattr(b, name)
            assert x.dtype == y.dtype and x.tobytes() == y.tobytes(), name
        assert a.episodes == b.episodes


@pytest.mark.parametrize("async_envs", [False, True])
@pytest.mark.parametrize("num_envs", [1, 2, 3])
def test_seven_steps_give_seven_true_rows_per_environment(num_envs: int, async_envs: bool) -> None:
    with collector(COUNT, num_envs, seed=5, async_envs=async_envs) as collected:
        steps = [collected.step(np.full((num_envs, 1), 0.25)) for _ in range(7)]
        shown = collected.observations
    times = [0, 1, 2, 0, 1, 2, 0]
    for index in range(num_envs):
        offsets = [offset(5, index, episode) for episode in (0, 0, 0, 1, 1, 1, 2)]
        for row, (time, start) in enumerate(zip(times, offsets, strict=True)):
            step = steps[row]
            np.testing.assert_array_equal(step.obs[index], [start, time, 0.5 if time else 0.0])
            np.testing.assert_array_equal(step.next_obs[index], [start, time + 1, 0.5])
            assert step.rewards[index] == time + 1.5
            assert step.actions[index] == 0.25
            assert not step.terminated[index]
            assert step.truncated[index] == (time == 2)
    assert shown[:, 1].tolist() == [1.0] * num_envs
    assert [len(step.episodes) for step in steps] == [0, 0, num_envs, 0, 0, num_envs, 0]
    assert steps[2].episodes[0].ret == 7.5 and steps[2].episodes[0].length == 3
    assert all(step.dones.tolist() == [0.0] * num_envs for step in steps)


def offset(seed: int, index: int, episode: int) -> np.float32:
    """What the counting environment draws at the start of an episode."""
    generator = np.random.default_rng(episode_seed(seed, "env", index, episode))
    return np.float32(generator.normal())


def test_arrays_are_float32_and_stay_as_they_were_handed_out() -> None:
    with collector(COUNT, 2) as collected:
        steps = [collected.step() for _ in range(4)]
        copies = [{name: getattr(step, name).copy() for name in FIELDS} for step in steps]
        for _ in range(7):
            collected.step()
    for step, kept in zip(steps, copies, strict=True):
        for name in ("obs", "actions", "rewards", "next_obs"):
            assert getattr(step, name).dtype == np.float32
        assert step.terminated.dtype == step.truncated.dtype == np.bool_
        assert all(np.array_equal(getattr(step, name), kept[name]) for name in FIELDS)


def test_termination_is_told_from_truncation_and_wins_over_it() -> None:
    cases = {
        (None, 2): (False, True, 0.0),
        (2, None): (True, False, 1.0),
        (2, 2): (True, False, 1.0),
    }
    for (terminate_at, truncate_at), (terminated, truncated, done) in cases.items():
        with collector(COUNT, 1, terminate_at=terminate_at, truncate_at=truncate_at) as collected:
            first, last, after = collected.step(), collected.step(), collected.step()
        assert (first.terminated[0], first.truncated[0], first.dones[0]) == (False, False, 0.0)
        assert (last.terminated[0], last.truncated[0], last.dones[0]) == (terminated, truncated, done)
        assert last.next_obs[0, 1] == 2.0 and after.obs[0, 1] == 0.0


def test_given_actions_are_played_in_environment_units_and_clipped() -> None:
    with collector(WALK) as collected:
        step = collected.step(np.array([[3.0, -0.5]]))
    env = make_env(WALK)
    env.reset(seed=episode_seed(0, "env", 0, 0))
    expected = env.step(np.array([2.0, -0.25], dtype=np.float32))[0]
    np.testing.assert_array_equal(step.actions, [[1.0, -0.5]])
    np.testing.assert_array_equal(step.next_obs[0], expected)
    with collector(WALK) as collected, pytest.raises(ValueError, match=r"shape \[1, 2\], got \[2\]"):
        collected.step(np.zeros(2))


def test_random_actions_fill_the_range_and_follow_the_seed() -> None:
    def drawn(seed: int) -> np.ndarray:
        with collector(WALK, 3, seed=seed) as collected:
            return np.stack([collected.step().actions for _ in range(300)])

    values = drawn(0)
    assert values.min() >= -1.0 and values.max() <= 1.0
    assert abs(values.mean()) < 0.05 and abs(values.var() - 1 / 3) < 0.03
    assert np.array_equal(values, drawn(0)) and not np.array_equal(values, drawn(1))


def test_environments_and_episodes_have_seeds_of_their_own() -> None:
    with collector(COUNT, 3) as collected:
        starts = [collected.observations[:, 0].copy()]
        for _ in range(9):
            if collected.step().truncated.any():
                starts.append(collected.observations[:, 0].copy())
    assert len(np.unique(np.stack(starts))) == 12


def test_the_vector_environment_never_resets_by_itself() -> None:
    for async_envs in (False, True):
        with collector(COUNT, 2, async_envs=async_envs) as collected:
            assert collected._envs.metadata["autoreset_mode"] == AutoresetMode.DISABLED


def replay_from_the_middle(
    env_id: str, before: int, after: int, *, num_envs: int = 3, was_async: bool, is_async: bool
) -> dict[str, Any]:
    """Run on, and restore into a new collector and run on: the same to the last bit."""
    with collector(env_id, num_envs, seed=11, async_envs=was_async) as first:
        for number in range(before):
            first.step(None if number % 2 else np.full((num_envs, first.spaces.action_dim), 0.1))
        state = first.state_dict()
        expected_now = first.observations.copy()
        expected = [first.step() for _ in range(after)]
    with (
        collector(env_id, num_envs, seed=11, async_envs=is_async) as second,
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("error")
        second.step()
        second.load_state_dict(state)
        assert second.observations.tobytes() == expected_now.tobytes()
        assert_same_steps(expected, [second.step() for _ in range(after)])
        return state


@pytest.mark.parametrize(("was_async", "is_async"), [(False, False), (True, True), (False, True)])
def test_restoring_in_mid_episode_goes_on_bit_for_bit(was_async: bool, is_async: bool) -> None:
    state = replay_from_the_middle(WALK, 23, 60, was_async=was_async, is_async=is_async)
    assert len(set(state["lengths"])) > 1, "the test is about episodes of unequal length"
    assert sum(state["episodes"]) > 3
    assert len(state["actions"]) == sum(state["lengths"])


@pytest.mark.parametrize("is_async", [False, True])
def test_restoring_pendulum(is_async: bool) -> None:
    state = replay_from_the_middle("Pendulum-v1", 250, 170, num_envs=2, was_async=False, is_async=is_async)
    assert state["lengths"] == [50, 50] and state["episodes"] == [1, 1]


def test_restoring_mujoco_and_its_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """MuJoCo would print a note on every creation, and leave a log file where the user stands."""
    pytest.importorskip("mujoco")
    monkeypatch.chdir(tmp_path)
    replay_from_the_middle("HalfCheetah-v5", 12, 12, num_envs=2, was_async=False, is_async=True)
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_restoring_where_every_episode_has_just_begun() -> None:
    for steps in (0, 3):
        state = replay_from_the_middle(COUNT, steps, 8, was_async=False, is_async=False)
        assert state["lengths"] == [0, 0, 0] and state["actions"].shape == (0, 1)


def test_the_returns_of_restored_episodes_are_whole() -> None:
    with collector(COUNT) as first:
        first.step(np.zeros((1, 1)))
        first.step(np.zeros((1, 1)))
        state = first.state_dict()
    with collector(COUNT) as second:
        second.load_state_dict(state)
        (episode,) = second.step(np.zeros((1, 1))).episodes
    assert (episode.ret, episode.length) == (6.0, 3)


def test_a_state_of_tensors_restores_too_and_other_sizes_are_refused() -> None:
    with collector(WALK, 2) as first:
        for _ in range(5):
            first.step()
        state = first.state_dict()
        expected = [first.step() for _ in range(5)]
    loaded = {k: torch.from_numpy(v) if isinstance(v, np.ndarray) else v for k, v in state.items()}
    with collector(WALK, 2) as second:
        second.load_state_dict(loaded)
        assert_same_steps(expected, [second.step() for _ in range(5)])
    with collector(WALK, 3) as third, pytest.raises(ValueError, match=r"num_envs must be 2 .* got 3"):
        third.load_state_dict(state)


@pytest.mark.parametrize("async_envs", [False, True])
@pytest.mark.parametrize(("truncate_at", "shown"), [(9, [2.0, 1.0]), (2, [0.0, 1.0])])
def test_an_environment_that_ignores_its_seed_is_reported_and_the_run_goes_on(
    truncate_at: int, shown: list[float], async_envs: bool
) -> None:
    """With `truncate_at=2` the first environment even ends where it did not before: a new episode starts."""
    with collector(WHIM, 2, truncate_at=9) as first:
        for _ in range(2):
            first.step()
        state = first.state_dict()
    state["lengths"], state["actions"] = [2, 1], state["actions"][:3]
    with collector(WHIM, 2, truncate_at=truncate_at, async_envs=async_envs) as second:
        with pytest.warns(UserWarning, match=r"Whim-v0' is not deterministic given its seed") as caught:
            second.load_state_dict(state)
        assert len(caught) == 1
        assert second.observations[:, 1].tolist() == shown
        assert second.state_dict()["episodes"] == [int(truncate_at == 2), 0]
        assert second.state_dict()["lengths"] == shown
        assert second.step().next_obs[:, 1].tolist() == [time + 1 for time in shown]


@pytest.mark.parametrize("async_envs", [False, True])
@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("raise", "raised RuntimeError: broken wheel"),
        ("obs", "returned an observation whose entry 1 is nan, which is not finite"),
        ("reward", "returned the reward inf, which is not finite"),
        ("shape", "returned an observation of shape (1,), its space says (3,)"),
    ],
)
def test_a_fault_names_the_place_and_keeps_the_state_before_it(
    fault: str, words: str, async_envs: bool, capfd: pytest.CaptureFixture[str]
) -> None:
    options = {"fault": fault, "fault_at": 2, "fault_in_episode": 1, "async_envs": async_envs}
    with collector(COUNT, 2, **options) as collected:
        for _ in range(4):
            collected.step()
        before = collected.state_dict()
        with pytest.raises(EnvironmentProblem) as caught:
            collected.step()
        assert str(caught.value) == f"environment 0 (episode 1, step 2) of '{COUNT}' {words}"
        with pytest.raises(EnvironmentProblem, match="episode 1, step 2"):
            collected.step()
        after = collected.state_dict()
    assert after["lengths"] == before["lengths"] == [1, 1]
    assert after["episodes"] == before["episodes"] == [1, 1]
    assert np.array_equal(after["actions"], before["actions"])
    assert np.array_equal(after["observations"], before["observations"])
    assert after["random"]["cursor"] == before["random"]["cursor"] == 4
    assert capfd.readouterr() == ("", ""), "the message is all there is to see"
    assert multiprocessing.active_children() == []


def test_a_reset_that_raises_is_named_at_the_start_and_later() -> None:
    with pytest.raises(
        EnvironmentProblem, match=r"environment 0 \(episode 0, reset\) .* RuntimeError: cannot start"
    ):
        collector(COUNT, 2, fault="reset", async_envs=True)
    assert multiprocessing.active_children() == []
    with collector(COUNT, 2, fault="reset", fault_in_episode=1) as collected:
        collected.step()
        collected.step()
        with pytest.raises(EnvironmentProblem, match=r"environment 0 \(episode 1, reset\)"):
            collected.step()
        assert collected.state_dict()["lengths"] == [2, 2]


def test_a_worker_that_dies_is_named_and_none_is_left_behind(capfd: pytest.CaptureFixture[str]) -> None:
    with collector(COUNT, 3, fault="die", fault_at=2, async_envs=True) as collected:
        collected.step()
        with pytest.raises(EnvironmentProblem, match=r"the process of environment \d \(exit code -9\)"):
            collected.step()
        assert collected.state_dict()["lengths"] == [1, 1, 1]
    assert multiprocessing.active_children() == []
    assert capfd.readouterr() == ("", "")


def test_an_action_that_is_no_number_is_the_policys_fault() -> None:
    with (
        collector("Pendulum-v1") as collected,
        pytest.raises(EnvironmentProblem, match=r"was given the action \[nan\]"),
    ):
        collected.step(np.array([[np.nan]]))


def test_leaving_in_the_middle_of_anything_leaves_no_worker() -> None:
    with pytest.raises(ZeroDivisionError), collector(COUNT, 2, async_envs=True) as collected:
        collected.step()
        raise ZeroDivisionError
    assert multiprocessing.active_children() == []
    collected.close()


SIGNALLED = """
import multiprocessing, os, signal, sys, threading, time
sys.path[:0] = {paths!r}
from rl_training.runtime.collect import Collector

def to_the_group(*signals):
    for number in signals:
        os.killpg(os.getpid(), number)

if __name__ == "__main__":
    received = []
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: received.append(number))
    try:
        with Collector("Pendulum-v1", {{}}, 3, 0, async_envs=True) as collector:
            collector.step()
            to_the_group(signal.SIGINT, signal.SIGTERM)
            time.sleep(0.2)
            for _ in range(30):
                collector.step()
            print(len(received), collector.state_dict()["lengths"])
            signal.signal(signal.SIGINT, signal.default_int_handler)
            threading.Timer(0.2, to_the_group, [signal.SIGINT]).start()
            while True:
                collector.step()
    except KeyboardInterrupt:
        print("interrupted", multiprocessing.active_children())
"""


@pytest.mark.slow
def test_signals_to_the_whole_group_are_the_parents_business(tmp_path: Path) -> None:
    """As Ctrl-C in a terminal and `timeout` send them: workers go on until the parent has finished."""
    script = tmp_path / "script.py"
    script.write_text(SIGNALLED.format(paths=[path for path in sys.path if path]))
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, timeout=60, start_new_session=True
    )
    assert done.stdout == "2 [31, 31, 31]\ninterrupted []\n"
    assert (done.stderr, done.returncode) == ("", 0)


def test_a_worker_asked_to_terminate_does_end_though_the_parent_handles_the_signal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(collect, "GRACE_SECONDS", 1)
    previous = signal.signal(signal.SIGTERM, lambda *_: None)
    try:
        with collector(COUNT, 1, async_envs=True) as collected:
            (process,) = collected._envs.processes
            assert process.pid is not None
            os.kill(process.pid, signal.SIGTERM)
            process.join(timeout=10)
            assert process.exitcode == -signal.SIGALRM
    finally:
        signal.signal(signal.SIGTERM, previous)


BOX = spaces.Box(-1.0, 1.0, (2,))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"action": spaces.Text(4)}, r"action space Text\(.*only continuous actions"),
        ({"action": spaces.MultiDiscrete([2, 1])}, r"a choice of 1 level"),
        ({"action": spaces.Box(0, 3, (1,), np.int64)}, r"action space Box\(0, 3.*only continuous"),
        ({"action": spaces.Box(-1.0, 1.0, (2, 2))}, r"actions of shape \(2, 2\).*flat vectors"),
        ({"action": spaces.Box(-np.inf, np.inf, (1,))}, r"unbounded actions \(low \[-inf\].*finite bounds"),
        ({"action": spaces.Box(-1.0, np.inf, (1,))}, r"unbounded actions .*high \[inf\]"),
        ({"action": spaces.Box(1.0, 1.0, (1,))}, r"low >= high"),
        (
            {"observation": spaces.Dict({"a": spaces.Discrete(3)})},
            r"Dict.*flat vectors.*dictionary of such",
        ),
        ({"observation": spaces.Box(0, 255, (8, 8, 3), np.uint8)}, r"\(8, 8, 3\).*no images"),
        ({"observation": spaces.Discrete(5)}, r"observation space Discrete\(5\).*flat vectors"),
    ],
)
@pytest.mark.parametrize("async_envs", [False, True])
def test_unsupported_spaces_say_what_is_supported(
    options: dict[str, Any], words: str, async_envs: bool
) -> None:
    with pytest.raises(EnvironmentProblem, match=words) as caught:
        collector(ODD, async_envs=async_envs, **options)
    assert "\n" not in str(caught.value)
    assert ODD in str(caught.value)


@pytest.mark.parametrize(
    ("env_id", "words"),
    [
        ("Pendulm-v1", "env_id must name .* got 'Pendulm-v1': .*Did you mean: `Pendulum`"),
        ("Pendulum-v9", "`v9` .* `v1`"),
        ("Pendulum-v0", "Please use `Pendulum-v1`"),
        ("nowhere/Env-v0", "Namespace nowhere not found"),
        ("no_such_module:Env-v0", "No module named 'no_such_module'"),
        ("what is this", "could not be created"),
    ],
)
def test_an_unknown_environment_is_one_line(env_id: str, words: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(EnvironmentProblem, match=words) as caught:
            spaces_of(env_id)
    assert "\n" not in str(caught.value)


def test_keywords_an_environment_does_not_take_are_one_line() -> None:
    with pytest.raises(EnvironmentProblem, match=r"with env_kwargs {'gravity': 9}: TypeError.*'gravity'"):
        spaces_of("Pendulum-v1", {"gravity": 9})


def test_spaces_of_an_id_and_of_an_environment() -> None:
    by_id = spaces_of("Pendulum-v1", {"g": 9.0})
    assert (by_id.obs_dim, by_id.action_low, by_id.action_high) == (3, (-2.0,), (2.0,))
    assert spaces_of(make_env("Pendulum-v1")) == by_id
    cart = spaces_of("CartPole-v1")
    assert (cart.obs_dim, cart.parts) == (4, (Choice((0.0, 1.0)),))
    assert spaces_of(make_env("CartPole-v1")) == spaces_of(gym.make("CartPole-v1")) == cart


def test_env_kwargs_reach_the_environment() -> None:
    with collector("Pendulum-v1", max_episode_steps=5) as collected:
        ended = [bool(collected.step().truncated[0]) for _ in range(10)]
    assert ended == [False, False, False, False, True] * 2


def test_the_collector_leaves_global_randomness_alone() -> None:
    np.random.seed(7)  # the global state that must not move
    torch.manual_seed(7)
    before, torch_before = np.random.get_state()[1].copy(), torch.get_rng_state()
    with collector(WALK, 2) as collected:
        for _ in range(30):
            collected.step()
    assert np.array_equal(before, np.random.get_state()[1])
    assert torch.equal(torch_before, torch.get_rng_state())


def test_num_envs_must_be_positive() -> None:
    with pytest.raises(ValueError, match="num_envs must be >= 1, got 0"):
        Collector("Pendulum-v1", None, 0, 0)


@pytest.mark.parametrize("told", [np.nan, np.inf, [1.0, 2.0], None])
def test_an_info_that_a_field_cannot_take_is_a_fault(told: Any) -> None:
    field = Field("costs", from_info="cost")
    assert kept_infos([field], {"cost": 2})["costs"] == 2.0
    assert "info['cost']" in kept_infos([field], {"cost": told})[FAULT]


@pytest.mark.parametrize("async_envs", [False, True])
def test_a_step_under_way_is_begun_again_where_its_state_goes_on(async_envs: bool) -> None:
    with collector(WALK, 2, seed=3, async_envs=async_envs) as first:
        first.step()
        assert not first.under_way and "begun" not in first.state_dict()
        first.begin(first.random_actions())
        state = first.state_dict()
        expected = [first.finish(), first.step()]
    with collector(WALK, 2, seed=3, async_envs=async_envs) as second:
        second.load_state_dict(state)
        assert second.under_way
        assert_same_steps(expected, [second.finish(), second.step()])
        second.load_state_dict({name: value for name, value in state.items() if name != "begun"})
        assert not second.under_way


def test_a_step_that_failed_is_begun_again_with_its_actions() -> None:
    with collector(COUNT, fault="raise", fault_at=2) as first:
        first.step()
        first.begin(np.full((1, 1), 0.25))
        with pytest.raises(EnvironmentProblem, match="broken wheel"):
            first.finish()
        state = first.state_dict()
    with collector(COUNT) as second:  # as mended
        second.load_state_dict(state)
        step = second.finish()
    assert step.actions.item() == 0.25 and step.next_obs[0, 1] == 2.0
