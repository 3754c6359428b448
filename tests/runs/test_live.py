"""A loop of one's own: the same numbers as with an environment, saved and taken up again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import rl_training
from helpers import assert_same_tree, tiny_config
from rl_training.core.checkpoints import load_checkpoint
from rl_training.core.errors import ConfigError, UserError
from rl_training.core.spaces import Spaces
from rl_training.runs.live import LiveCollection, LiveStep
from rl_training.runs.resume import finetune_checkpoint, resume_training
from rl_training.runtime.envs import episode_seed, make_env

STEPS = 30
SETTINGS: dict[str, Any] = {"warmup_steps_online": 6, "buffer_capacity": 40}
KWARGS = {"max_episode_steps": 9}


class Machine:
    """Somebody else's loop around Pendulum, with the seeds that a run's own collector would use."""

    def __init__(self) -> None:
        self.env, self.episode = make_env("Pendulum-v1", KWARGS), 0
        self.obs = self.begin()

    def begin(self) -> Any:
        obs, _ = self.env.reset(seed=episode_seed(7, "env", 0, self.episode))
        self.episode += 1
        return obs

    def steps(self, agent: Any, count: int) -> Iterator[dict[str, float]]:
        for _ in range(count):
            next_obs, reward, terminated, truncated, _ = self.env.step(agent.act(self.obs))
            agent.observe(float(reward), next_obs, terminated, truncated)
            yield agent.update()
            self.obs = self.begin() if terminated or truncated else next_obs


@pytest.mark.parametrize("name", ["CalQL", "TD3BC"])
def test_a_live_loop_gives_what_an_environment_gives_also_across_a_restart(name: str, tmp_path: Path) -> None:
    kind = getattr(rl_training, name)
    agent = kind(tiny_config(kind.algo, tmp_path, env_kwargs=KWARGS))
    offline = agent.learn(quiet=True)
    ours = finetune_checkpoint(
        offline.run_dir, timesteps=STEPS, changes={"algo_kwargs": SETTINGS}, quiet=True
    )
    machine = Machine()
    session = agent.go_live(STEPS, **SETTINGS)
    metrics = list(machine.steps(agent, 17))[-1]
    assert metrics["critic_loss"] > 0
    session.save()
    for callback in session.run.callbacks:  # as if the process had ended here
        callback.close(session.run)
    again = kind.load(session.run.run_dir)
    following = again.go_live()
    assert len(list(machine.steps(again, 13))) == 13
    with pytest.raises(UserError, match="the 30 online steps of this run are over"):
        again.act(machine.obs)
    result = following.close()
    assert result.run_dir == session.run.run_dir and result.run_dir.name.endswith("-live")
    left, right = (load_checkpoint(run.run_dir) for run in (ours, result))
    for key in ("counters", "learner", "streams", "exploration", "replay"):
        assert_same_tree(left[key], right[key], key)
    with pytest.raises(ConfigError, match="load it in Python and call go_live"):
        resume_training(result.run_dir, quiet=True)


def test_a_live_loop_says_what_is_missing(tmp_path: Path) -> None:
    agent = rl_training.IQL(tiny_config("iql", tmp_path, env_kwargs=KWARGS))
    agent.learn(quiet=True)
    with pytest.raises(UserError, match="call go_live"):
        agent.act([0.0, 0.0, 0.0])
    with pytest.raises(ConfigError, match="timesteps must be given"):
        agent.go_live()
    session = agent.go_live(STEPS)
    with pytest.raises(UserError, match=r"call act\(obs\) first"):
        agent.observe(0.0, [0.0, 0.0, 0.0])
    agent.act([1.0, 0.0, 0.0], first=True)
    with pytest.raises(UserError, match="reward must be finite, got nan"):
        agent.observe(float("nan"), [1.0, 0.0, 0.0])
    with pytest.raises(UserError, match=r"obs must have shape \(3,\)"):
        agent.observe(0.0, [1.0, 0.0])
    agent.act([1.0, 0.0, 0.0])  # nothing came of the action before: it is forgotten
    agent.observe(0.5, [1.0, 0.0, 0.0])
    assert session.trainer.counters.env_steps == 1
    agent.update()
    assert session.close().metrics["env_steps"] == 1


def test_rows_hold_the_action_that_was_really_played(tmp_path: Path) -> None:
    agent = rl_training.TD3BC(tiny_config("td3_bc", tmp_path, env_kwargs=KWARGS))
    agent.learn(quiet=True)
    session = agent.go_live(STEPS)
    suggested = float(agent.act([1.0, 0.0, 0.0], first=True)[0])
    agent.observe(0.0, [1.0, 0.0, 0.0])
    for played in (0.5, -3.0):  # bounds are -2 and 2
        agent.act([1.0, 0.0, 0.0])
        agent.observe(0.0, [1.0, 0.0, 0.0], played=[played])
    agent.act([1.0, 0.0, 0.0])
    with pytest.raises(UserError, match=r"played must be the action that was played, 1 finite numbers, got"):
        agent.observe(0.0, [1.0, 0.0, 0.0], played=[0.5, 0.5])
    actions = load_checkpoint(session.save())["replay"]["actions"].flatten().tolist()
    assert actions == pytest.approx([suggested / 2.0, 0.25, -1.0])
    session.close()


def test_a_new_episode_cuts_off_the_one_before(tmp_path: Path) -> None:
    agent = rl_training.CalQL(tiny_config("cal_ql", tmp_path, env_kwargs=KWARGS, algo_kwargs={"gamma": 0.5}))
    agent.learn(quiet=True)
    session = agent.go_live(STEPS)
    for index, reward in enumerate([1.0, 2.0, 4.0]):
        agent.act([1.0, 0.0, 0.0], first=index == 2)
        agent.observe(reward, [1.0, 0.0, 0.0])
    replay = load_checkpoint(session.save())["replay"]
    assert replay["returns_to_go"].tolist() == [2.0, 2.0]
    assert replay["open"]["0"]["rewards"].tolist() == [4.0]
    session.close()


def test_a_step_with_a_gap_ends_the_rows_before_it() -> None:
    """What follows the gap is no successor of what came before: returns must not run across it."""
    guard, learner = Mock(facts=Mock(fallback=None)), Mock(policy=Mock(memory=None))
    rows, spaces = Mock(), Spaces(2, (-1.0,), (1.0,))
    live = LiveCollection(spaces, rows, Mock(), Mock(), learner, guard)
    seen, action = np.zeros((1, 2), np.float32), np.zeros(1, np.float32)
    live.acted = LiveStep(seen, seen, action[None], action)
    live.observe(1.0, [0.0, float("nan")], False, False)
    rows.cut.assert_called_once_with()
    rows.add.assert_not_called()
    assert live.current.length == 1
