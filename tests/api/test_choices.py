"""Actions that are choices: an algorithm from outside learns them end to end; others refuse."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rl_training
from helpers import tiny_config, train
from level_values import ARMS, OFFLINE, ONLINE, Arms, LevelValues
from rl_training.algorithms.recipe import get_recipe
from rl_training.cli import main
from rl_training.core.checkpoints import load_run_state
from rl_training.core.errors import ConfigError, EnvironmentProblem, UserError
from rl_training.core.registry import ALGORITHMS
from rl_training.core.spaces import Box, Choice, Spaces
from rl_training.data import DataInfo, TransitionDataset
from rl_training.policies.policy import register_actor
from rl_training.runs.evaluate import evaluate_checkpoint, predict_checkpoint
from rl_training.runs.resume import resume_training
from rl_training.runtime.collect import Collector
from rl_training.runtime.envs import env_maker, spaces_of
from rl_training.runtime.record import Rollout, collect_in_memory

PUMP = Choice(("off", "on"))
PLUGGED_IN = ("level_values", "level_values_online")
SETTINGS = {"learning_rate": 1e-2, "gamma": 0.0, "hidden_sizes": (16,)}


@pytest.fixture(autouse=True)
def registered() -> None:
    register_actor(LevelValues)
    rl_training.register_algorithm(OFFLINE)
    rl_training.register_algorithm(ONLINE)


def pump_log(rows: int = 400) -> TransitionDataset:
    """The pump should be on below zero and off above; the log tried both."""
    rng = np.random.default_rng(0)
    level = rng.uniform(-1.0, 1.0, (rows, 1)).astype(np.float32)
    pump = rng.integers(2, size=(rows, 1)).astype(np.float32)
    paid = ((level < 0) == (pump == 1)).astype(np.float32)[:, 0]
    ends = np.ones(rows, dtype=np.float32)
    info = DataInfo(spaces=Spaces.of(1, [PUMP]), action_names=("pump",))
    return TransitionDataset(level, pump, paid, level, ends, info=info)


def weights_of(run: Path) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_run_state(run)["learner"]["tensors"]
    return tensors


@pytest.mark.parametrize(
    ("algo", "in_memory"), [("level_values", True), ("level_values", False), ("iql", True)]
)
def test_a_choice_is_learned_from_a_log_and_answered_in_its_own_words(
    tmp_path: Path, algo: str, in_memory: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(folder: str, steps: int, **changes: Any) -> Any:
        config = tiny_config(algo, tmp_path / folder, env_id=None, total_timesteps=steps, **changes)
        kwargs = {**config.algo_kwargs, **SETTINGS, "dataset_in_memory": in_memory}
        kwargs = {name: value for name, value in kwargs.items() if not name.startswith("dataset_s")}
        return train(config.replace(algo_kwargs=kwargs), dataset=pump_log())

    at_once, half = run("at_once", 200), run("halves", 100)
    resumed = resume_training(half.run_dir, total_timesteps=200, dataset=pump_log(), quiet=True)
    for name, tensor in weights_of(at_once.run_dir).items():
        assert torch.equal(tensor, weights_of(resumed.run_dir)[name]), name
    assert predict_checkpoint(at_once.run_dir, [-0.5]).tolist() == ["on"]
    assert predict_checkpoint(at_once.run_dir, [[0.5], [-0.5]]).tolist() == [["off"], ["on"]]
    assert rl_training.load_policy(at_once.run_dir).predict([0.5]).tolist() == ["off"]
    stored = load_run_state(at_once.run_dir)["policy"]["spaces"]
    assert stored["action_levels"] == [["off", "on"]]
    capsys.readouterr()
    assert main(["predict", "--checkpoint", str(at_once.run_dir), "--obs=-0.5"]) == 0
    assert json.loads(capsys.readouterr().out) == ["on"]


def test_a_level_that_a_log_does_not_name_is_refused(tmp_path: Path) -> None:
    log = pump_log()
    log.actions[7] = 3.0
    config = tiny_config("level_values", tmp_path, env_id=None)
    with pytest.raises(UserError, match=r"an action of 3.0 is not in a choice among off, on"):
        train(config, dataset=log)


def test_a_choice_is_learned_in_an_environment(tmp_path: Path) -> None:
    def run(folder: str, steps: int, **changes: Any) -> Any:
        config = tiny_config(
            "level_values_online",
            tmp_path / folder,
            env_id=ARMS,
            total_timesteps=steps,
            algo_kwargs={**SETTINGS, "learning_starts": 50},
            **changes,
        )
        return train(config)

    at_once = run("at_once", 302)
    half = run("halves", 150)  # in the middle of an episode
    resumed = resume_training(half.run_dir, total_timesteps=302, quiet=True)
    for name, tensor in weights_of(at_once.run_dir).items():
        assert torch.equal(tensor, weights_of(resumed.run_dir)[name]), name
    assert evaluate_checkpoint(at_once.run_dir, num_episodes=5)["eval_return_mean"] == 4.0
    assert predict_checkpoint(at_once.run_dir, [[1.0], [-1.0]]).tolist() == [[1.0], [0.0]]


def test_seeds_are_stacked(tmp_path: Path) -> None:
    config = tiny_config(
        "level_values_online", tmp_path, env_id=ARMS, seeds=(0, 1), algo_kwargs={"learning_starts": 10}
    )
    members = train(config).members
    assert [predict_checkpoint(each.run_dir, [1.0]).shape for each in members] == [(1,), (1,)]


TAKE_ANYTHING = ("awac", "bc", "crr", "iql")
TAKE_CHOICES = ("awac", "bc", "crr", "discrete_cql", "dqn", "iql", "sac")


@pytest.mark.parametrize("algo", sorted({*ALGORITHMS.builtin} - {*TAKE_CHOICES}))
@pytest.mark.filterwarnings("ignore:limits.bad is")  # of caps: arms cost nothing
def test_what_has_no_head_for_choices_refuses_and_names_what_has(algo: str, tmp_path: Path) -> None:
    config = tiny_config(algo, tmp_path / "runs", env_id=ARMS)
    words = rf"algo {algo} takes only continuous actions, and action 0 is a choice among .* take choices: "
    with pytest.raises(ConfigError, match=words + ", ".join((*TAKE_CHOICES, *PLUGGED_IN))):
        train(config)
    assert not (tmp_path / "runs").exists()


def test_what_takes_choices_alone_says_so_of_anything_else() -> None:
    recipe, names = get_recipe("level_values"), ", ".join(TAKE_ANYTHING)
    many = [Choice(tuple(map(float, range(5)))), Choice(tuple(map(float, range(13))))]
    for parts, words in (
        ([PUMP, Box(0.0, 5.0)], rf"action 1 is a number in \[0, 5\]; .* take mixtures of both: {names}$"),
        (many, rf"these levels have 65 combinations; .* more than 64 combinations of levels: {names}$"),
    ):
        with pytest.raises(ConfigError, match="algo level_values takes only choices, and " + words):
            recipe.check_actions(Spaces.of(2, parts))
    recipe.check_actions(Spaces.of(2, [*many[:1], PUMP]))
    with pytest.raises(
        ConfigError, match=r"algo dqn takes only choices, and action 0 is a number in \[-1, 1\]; .*"
    ):
        get_recipe("dqn").check_actions(Spaces.of(2, [Box(-1.0, 1.0)]))
    with pytest.raises(
        ConfigError, match="algo sac takes only continuous actions or choices, and action 1 is a"
    ):
        get_recipe("sac").check_actions(Spaces.of(2, [Box(-1.0, 1.0), PUMP]))


def test_a_policy_of_numbers_is_not_cut_to_levels(tmp_path: Path) -> None:
    rows = np.linspace(-1.0, 1.0, 20, dtype=np.float32)
    given = rows[:, None], rows[:, None] / 2.0 + 0.3, rows, rows[:, None], np.ones(20, dtype=np.float32)
    config = tiny_config(
        "bc", tmp_path, env_id=None, algo_kwargs={"action_low": [-1.0], "action_high": [1.0]}
    )
    result = train(config, dataset=TransitionDataset(*given))
    with pytest.raises(EnvironmentProblem, match=r"an action of .* is not in a choice among 0, 1"):
        evaluate_checkpoint(result.run_dir, env=Arms, num_episodes=1)


# ---- environments


class Mixed(gym.Env[Any, Any]):
    """Takes a dictionary of everything there is, and remembers what it was given."""

    taken: ClassVar[list[Any]] = []

    def __init__(self) -> None:
        self.observation_space = spaces.Box(-1.0, 1.0, (2,))
        self.action_space = spaces.Dict(
            {
                "a_valve": spaces.Box(-2.0, 2.0, (2,)),
                "b_mode": spaces.Discrete(3, start=5),
                "c_flags": spaces.MultiBinary(2),
                "d_gears": spaces.Tuple((spaces.MultiDiscrete([2, 4]), spaces.Box(0.0, 1.0, (1,)))),
            }
        )

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.zeros(2, dtype=np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        self.taken.append(action)
        return np.zeros(2, dtype=np.float32), 0.0, False, False, {}


def test_every_kind_of_action_space_is_a_row_of_parts_and_goes_back_to_what_it_was() -> None:
    found = spaces_of(env_maker(Mixed))
    numbers = lambda first, count: Choice(tuple(float(first + i) for i in range(count)))  # noqa: E731
    assert found.parts == (
        *(Box(-2.0, 2.0), Box(-2.0, 2.0), numbers(5, 3), numbers(0, 2), numbers(0, 2)),
        *(numbers(0, 2), numbers(0, 4), Box(0.0, 1.0)),
    )
    assert (found.action_columns, found.action_dim) == (8, 16)
    with Collector(env_maker(Mixed), None, 1, seed=0) as collector:
        steps = collector.step(found.encode([[1.0, -2.0, 7, 0, 1, 1, 3, 0.25]]))
        state = collector.state_dict()
    assert steps.actions.shape == (1, 16) and state["actions"].tolist() == [[1, -2, 7, 0, 1, 1, 3, 0.25]]
    given = Mixed.taken[-1]
    assert given["a_valve"].tolist() == [1.0, -2.0] and given["b_mode"] == 7
    assert given["c_flags"].tolist() == [0, 1] and given["c_flags"].dtype == np.int8
    assert given["d_gears"][0].tolist() == [1, 3] and given["d_gears"][1].tolist() == [0.25]


def test_random_actions_of_an_environment_are_logged_as_columns_and_read_back(tmp_path: Path) -> None:
    with Rollout(env_maker(Arms), None, 3) as rollout:
        log = collect_in_memory(rollout, 200, "arms")
    assert set(np.unique(TransitionDataset.from_log(log).actions)) == {0.0, 1.0}
    spaces_again = DataInfo.from_dict("again", log.info.to_dict()).spaces
    assert spaces_again == log.info.spaces == Spaces.of(1, [Choice((0.0, 1.0))])


@pytest.mark.parametrize(
    ("action", "words"),
    [
        (spaces.Discrete(1), "a choice of 1 level: leave out"),
        (spaces.Tuple((spaces.Text(3),)), r"Text\(.*only continuous actions .* choices .* are supported"),
        (spaces.Tuple((spaces.Box(-np.inf, 1.0, (1,)),)), "unbounded actions"),
    ],
)
def test_what_no_part_stands_for_is_refused(action: spaces.Space[Any], words: str) -> None:
    class Odd(Arms):
        def __init__(self) -> None:
            super().__init__()
            self.action_space = action

    with pytest.raises(EnvironmentProblem, match=f"environment 'Odd' has .*{words}"):
        spaces_of(env_maker(Odd))
