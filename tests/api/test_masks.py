"""Masks: levels that may not be taken now have no chance in drawing, mode, targets and penalties."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rl_training
from helpers import BARE_STATE, tiny_config, train
from learner_checks import close, numbers
from level_values import LevelModel
from rl_training.algorithms import DQN, SAC, DiscreteCQL, losses
from rl_training.cli import main
from rl_training.core.errors import ConfigError, DataError, EnvironmentProblem, UserError
from rl_training.core.spaces import Box, Choice, Spaces
from rl_training.data import DataInfo, TransitionDataset
from rl_training.data.log import EpisodeLog
from rl_training.data.read import load_transition_dataset
from rl_training.judging import judge
from rl_training.models import MLPDQNModel, MLPSACModel
from rl_training.models.choices import EpsilonGreedy, FactoredActor, LevelCritics, allowed_levels, entropy
from rl_training.models.networks import NetworkPlan
from rl_training.policies.acting import Controller
from rl_training.policies.export.torchscript import torchscript_outputs
from rl_training.policies.guard import Fallback
from rl_training.policies.guard_fitting import GuardConfig
from rl_training.policies.policy import Policy
from rl_training.runs.evaluate import evaluate_checkpoint
from rl_training.runs.export import export_checkpoint, export_policy, guard_of_rows
from rl_training.runs.resume import resume_training
from rl_training.runtime.collect import Collector
from rl_training.runtime.envs import env_maker, spaces_of
from rl_training.runtime.offline_data import spaces_of_log
from rl_training.runtime.record import Rollout, collect_in_memory

MODE, VALVE, PUMP = Choice((5.0, 6.0, 7.0)), Box(0.0, 10.0), Choice(("off", "on"))
MIXED = Spaces.of(6, [MODE, VALVE, PUMP], masked=True)  # one number is seen, five say what may be taken
THREE = Spaces.of(4, [MODE], masked=True)


# ---- what may be taken


def test_a_mask_speaks_of_the_levels_of_choices_alone() -> None:
    obs = np.float32([[9, 1, 1, 0, 0, 1], [9, 0, 0, 0, 1, 1]])  # the second rules out every mode
    expected = [[True, True, False, True, False, True], [True] * 6]
    assert MIXED.mask_size == 5 and MIXED.allowed(obs).tolist() == expected
    mode, pump = allowed_levels(torch.from_numpy(obs), MIXED.levels)
    assert mode.tolist() == [row[:3] for row in expected] and pump.tolist() == [row[4:] for row in expected]
    joint = LevelCritics(6, (3, 2), 1, masked=True).allowed(torch.from_numpy(obs))
    assert joint.tolist() == [[False, True, False, True, False, False], [True] * 6]
    assert Spaces.from_dict(MIXED.to_dict()) == MIXED != Spaces.of(6, [MODE, VALVE, PUMP])


def test_random_actions_are_those_that_may_be_taken_all_equally_likely() -> None:
    obs = np.tile(np.float32([9, 1, 0, 1, 0, 1]), (3000, 1))
    drawn = MIXED.random(np.random.default_rng(0).uniform(-1.0, 1.0, (3000, 3)), obs)
    shares = (drawn > 0.0).mean(axis=0)
    assert shares[[1, 4]].tolist() == [0.0, 0.0] and shares[5] == 1.0
    assert abs(shares[0] - 0.5) < 0.03 and abs(shares[2] - 0.5) < 0.03


@pytest.mark.parametrize("parts", [[VALVE], [MODE, PUMP]])
def test_a_mask_needs_choices_and_something_seen_beside_it(parts: list[Any]) -> None:
    with pytest.raises(UserError, match="action_mask needs choices, and observations beside its"):
        Spaces.of(5, parts, masked=True)


# ---- known numbers


def test_the_probabilities_of_a_masked_mixture_have_the_known_values() -> None:
    levels = MIXED.levels
    actor = FactoredActor(
        11, 6, NetworkPlan(hidden_sizes=()), levels=levels, family="unbounded", masked=True
    ).double()
    with torch.no_grad():
        actor.net.output.weight.copy_(torch.eye(11, 6))
        actor.net.output.bias.zero_()
    seen = (0.2, 1.0, 0.0, -1.0, 0.3, -0.2)
    obs = numbers((*seen, 1.0, 1.0, 0.0, 1.0, 1.0), (*seen, 0.0, 1.0, 1.0, 0.0, 1.0))
    values, _ = actor.distribution(obs)
    close(values[0, :2], (-0.313262, -1.313262))
    assert values[:, :3].exp()[[0, 1], [2, 0]].tolist() == [0.0, 0.0]
    close(entropy(values[1, 4:]), 0.0)
    assert actor.mode(obs).tolist() == [[1, -1, -1, 0.2, 1, -1], [-1, 1, -1, 0.2, -1, 1]]
    actions, logprobs = actor(obs.repeat(500, 1), torch.randn(1000, 6, dtype=torch.float64))
    assert (actions[0::2, 2] == -1.0).all() and (actions[1::2, [0, 4]] == -1.0).all()
    assert {*actions[0::2, :2].argmax(-1).tolist()} == {0, 1}
    close(logprobs, actor.log_prob(obs.repeat(500, 1), actions))
    assert actor.options()["masked"] == 1.0


Q, ONLINE = numbers((1.0, 2.0, 0.0), (0.5, -1.0, 3.0)), numbers((0.2, 0.9, 0.1), (1.0, -0.5, 1.5))
TARGET = numbers((0.5, 0.4, 2.0), (0.3, 0.2, 0.1))
BATCH = {
    # which row of the table, then what may be taken: not the third level; anything
    "obs": numbers((1.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0), (0.0, 1.0, 0.0, 0.0, 1.0, 1.0, 1.0)),
    "actions": numbers((-1.0, 1.0, -1.0), (1.0, -1.0, -1.0)),
    "rewards": numbers(1.0, -0.5),
    "dones": numbers(0.0, 1.0),
    # not the second level, which is the best of the first row; nothing is said of the second row
    "next_obs": numbers((0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 1.0), (0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0)),
}
TABLE = Spaces.of(7, [MODE], masked=True)


def table(critic: LevelCritics, *rows: torch.Tensor) -> None:
    """Critics whose values are those rows; what is seen beside them weighs nothing."""
    with torch.no_grad():
        for parameter in critic.parameters():
            parameter.zero_()
        critic.net.output.weight[..., :4, :] = torch.cat(rows)


@pytest.mark.parametrize("kind", [DQN, DiscreteCQL])
def test_targets_and_penalties_leave_out_what_may_not_be_taken(kind: type[DQN]) -> None:
    model = MLPDQNModel(7, 3, spaces=TABLE, hidden_sizes=()).double()
    learner = kind(model, gamma=0.9, td_loss="square")
    table(learner.critic, Q, ONLINE)
    table(learner.target_critic, Q, TARGET)
    close(learner.value_target(BATCH), (1.45, -0.5))  # 1 + .9 · .5, where the second level would give 1.36
    metrics = learner.update(BATCH, global_step=0).metrics
    close(torch.tensor(metrics["critic_loss"]).double(), ((2.0 - 1.45) ** 2 + (0.5 + 0.5) ** 2) / 2.0)
    if kind is DiscreteCQL:  # log(1 + 1/e) where three levels would make it .407606
        close(torch.tensor(metrics["cql_penalty"]).double(), (0.313262 + 2.595674) / 2.0)


def test_expectations_of_sac_leave_out_what_may_not_be_taken() -> None:
    model = MLPSACModel(7, 3, spaces=TABLE, hidden_sizes=()).double()
    learner = SAC(model, gamma=0.9, alpha=0.5)
    with torch.no_grad():
        for parameter in learner.actor.parameters():
            parameter.zero_()
    table(learner.target_critic, Q, TARGET)
    # two levels of even chance: (.5 + 2) / 2 + .5 log 2; the second row has ended
    close(learner.value_target(BATCH, {}), (1.0 + 0.9 * (1.25 + 0.5 * 0.693147), -0.5))
    table(learner.critic, Q, ONLINE)
    loss, logprobs = learner.actor_loss(BATCH, {}, "full")
    close(logprobs, (-0.693147, -1.098612))
    close(loss, -((1.5 + 0.5 * 0.693147) + (2.5 / 3.0 + 0.5 * 1.098612)) / 2.0)
    learned = SAC(MLPSACModel(7, 3, spaces=TABLE, hidden_sizes=()).double())
    # alpha aims at half the entropy of as many levels as there are: it has twice that here
    expected = (
        losses.temperature_loss(learned.log_alpha, logprobs, 0.0)
        - learned.log_alpha * (0.693147 + 1.098612) / 4.0
    )
    close(learned.alpha_loss(logprobs, BATCH["obs"]).double(), expected.double())
    with torch.no_grad():
        learned.log_alpha.fill_(1.0)
    close(learned.alpha_loss(logprobs, BATCH["obs"]).double(), (0.693147 + 1.098612) / 4.0)


def test_random_actions_of_a_greedy_actor_are_those_that_may_be_taken() -> None:
    actor = EpsilonGreedy(4, 3, NetworkPlan(hidden_sizes=()), levels=[3], epsilon=0.5, masked=True)
    with torch.no_grad():
        actor.net.output.weight.zero_()
        actor.net.output.bias.copy_(torch.tensor([0.0, 1.0, 2.0]))
    obs = torch.tensor([[9.0, 1.0, 1.0, 0.0]]).expand(4000, 4)
    actions, logprobs = actor(obs, torch.randn(4000, 2, generator=torch.Generator().manual_seed(0)))
    shares = (actions > 0).double().mean(0)
    assert shares[2] == 0.0 and abs(shares[1] - 0.75) < 0.03
    assert logprobs.exp().unique().tolist() == pytest.approx([0.25, 0.75])
    assert actor.mode(obs[:1]).tolist() == [[-1.0, 1.0, -1.0]]


def test_a_fallback_gives_way_to_what_may_be_taken() -> None:
    def choose(asked: Any) -> tuple[Any, Any]:
        return np.full((len(asked), 1), 6.0, dtype=np.float32), np.full((len(asked), 1), 2.0)

    controller = Controller(THREE, choose, None, Fallback("action", (7.0,)))
    assert controller.act([0.0, 1.0, 1.0, 1.0]).action == [7.0]
    assert controller.act([0.0, 1.0, 1.0, 0.0]).action == [6.0]  # the policy's own
    assert controller.act([[0.0, 1.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]]).action.tolist() == [[7.0], [6.0]]
    assert controller.act([np.nan, 1.0, 0.0, 0.0]).action == [5.0]  # it has none of its own
    assert controller.act(None).action == [7.0]


def test_an_actor_of_others_that_heeds_no_masks_is_refused() -> None:
    with pytest.raises(ConfigError, match="action_mask cannot be heeded by LevelModel, whose actor is"):
        LevelModel(4, 3, spaces=THREE)


# ---- environments


class Gates(gym.Env[Any, Any]):
    """Four steps through one of three gates: the highest pays most, and one of them, told ahead, is shut."""

    action_space = spaces.Discrete(3)
    observation_space = spaces.Box(0.0, 1.0, (1,))
    mask: Any = None

    def _shown(self) -> tuple[Any, dict[str, Any]]:
        self.shut = int(self.np_random.integers(3))
        mask = np.ones(3, dtype=np.int8)
        mask[self.shut] = 0
        return np.zeros(1, dtype=np.float32), {"action_mask": mask if self.mask is None else self.mask}

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self._shown()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action != self.shut, "went through a gate that is shut"
        self.steps += 1
        obs, info = self._shown()
        return obs, float(action), self.steps == 4, False, info


GATES = "Gates-v0"
gym.register(GATES, entry_point=Gates)
OPEN = np.float32([[0, 1, 1, 0], [0, 1, 0, 1], [0, 0, 1, 1], [0, 0, 1, 0]])
BEST = [[1.0], [2.0], [2.0], [1.0]]
LEARN = {"learning_rate": 2e-2, "gamma": 0.0, "hidden_sizes": (16,)}


def test_a_log_with_stated_bounds_keeps_its_mask() -> None:
    columns = {
        "obs": np.zeros((2, 6)),
        "actions": np.zeros((2, 3)),
        "rewards": np.zeros(2),
        "terminated": np.zeros(2),
    }
    info = DataInfo(choices=(MODE, None, PUMP), masked=True)
    log = EpisodeLog.from_arrays({**columns, "truncated": np.array([False, True])}, info=info)
    assert spaces_of_log(log, {"low": [VALVE.low], "high": [VALVE.high]}) == MIXED
    alone = EpisodeLog.from_arrays(
        {**columns, "actions": np.zeros((2, 1)), "truncated": np.array([False, True])},
        info=DataInfo(choices=(MODE,), masked=True),
    )
    assert spaces_of_log(alone, {}) == Spaces.of(6, [MODE], masked=True), "choices alone need no bounds"


def test_an_environment_shows_its_mask_behind_its_observations() -> None:
    found = spaces_of(GATES)
    assert found == Spaces.of(4, [Choice((0.0, 1.0, 2.0))], masked=True)
    with Collector(GATES, None, 2, seed=0) as collector:
        for _ in range(40):  # random actions heed it too
            steps = collector.step()
            assert steps.obs.shape == (2, 4) and set(steps.next_obs[:, 1:].sum(axis=1)) == {2.0}
            assert (steps.actions[steps.obs[:, 1:] == 0.0] == -1.0).all()

    class Told(Gates):
        mask = np.ones(4, dtype=np.int8)

    with pytest.raises(EnvironmentProblem, match=r"must hold 3 numbers, 1 or 0 for each level .*, got \[1 1"):
        Collector(env_maker(Told), None, 1, seed=0)


def test_the_mask_of_parts_is_read_in_the_order_of_columns() -> None:
    class Parts(Gates):
        action_space = spaces.Tuple((spaces.Discrete(3), spaces.Box(0.0, 1.0, (1,)), spaces.MultiBinary(1)))
        mask = (np.array([1, 0, 1], dtype=np.int8), None, (np.array([0, 1], dtype=np.int8),))

    with Collector(env_maker(Parts), None, 1, seed=0) as collector:
        assert collector.observations.tolist() == [[0, 1, 0, 1, 0, 1]]
        assert collector.spaces.mask_size == 5


@pytest.mark.parametrize("algo", ["dqn", "sac"])
def test_masks_are_heeded_in_interaction_and_by_what_is_saved(algo: str, tmp_path: Path) -> None:
    own = {"dqn": {"epsilon_start": 1.0, "epsilon_updates": 100}, "sac": {"target_entropy": 0.01}}[algo]
    settings = {**LEARN, **own, "learning_starts": 40}

    def run(folder: str, steps: int) -> Any:
        config = tiny_config(
            algo, tmp_path / folder, env_id=GATES, total_timesteps=steps, algo_kwargs=settings
        )
        return train(config).run_dir

    at_once, half = run("at_once", 250), run("halves", 101)  # in the middle of an episode
    resumed = resume_training(half, total_timesteps=250, quiet=True).run_dir
    policy, again = rl_training.load_policy(at_once), rl_training.load_policy(resumed)
    assert policy.predict(OPEN).tolist() == again.predict(OPEN).tolist() == BEST
    assert evaluate_checkpoint(at_once, num_episodes=5)["eval_return_mean"] >= 4.0
    drawn = policy.predict(np.repeat(OPEN, 50, axis=0), deterministic=False)[:, 0].astype(int)
    assert np.repeat(OPEN, 50, axis=0)[np.arange(200), 1 + drawn].all()
    with Rollout(GATES, None, 3, policy=policy, noise=3.0, random_share=0.3) as rollout:
        log = collect_in_memory(rollout, 60, "gates")  # noise and random actions heed it, or it stops
    assert log.info.masked and DataInfo.from_dict("again", log.info.to_dict()).spaces == log.info.spaces


# ---- logs

ROWS = 120


def gates_log(**changes: Any) -> dict[str, Any]:
    """Every gate that was open was tried; the highest pays most."""
    rng = np.random.default_rng(0)
    shut = rng.integers(3, size=ROWS)
    mask = np.ones((ROWS, 3), dtype=np.float32)
    mask[np.arange(ROWS), shut] = 0.0
    gate = (shut + rng.integers(1, 3, size=ROWS)) % 3
    columns = {"run": np.arange(ROWS) // 4, "seen": 5.0 + rng.random(ROWS), "gate": gate, "pay": gate * 1.0}
    columns |= {f"open_{index}": mask[:, index] for index in range(3)}
    return columns | changes


MASK = ("open_0", "open_1", "open_2")


def written(folder: Path, columns: dict[str, Any]) -> Path:
    file = folder / "log.csv"
    rows = zip(*columns.values(), strict=True)
    file.write_text("\n".join(",".join(map(str, row)) for row in [tuple(columns), *rows]))
    return file


def read(folder: Path, columns: dict[str, Any], mask: Sequence[str] = MASK, **fields: Any) -> Any:
    """The log by way of a file."""
    file = written(folder, columns)
    mapped: dict[str, Any] = {"observations": ["seen"], "actions": ["gate{0,1,2}"], "reward": "pay"}
    mapped |= {"episode": "run", "fields": {"action_mask": list(mask)} if mask else {}}
    return load_transition_dataset(file, columns=mapped, **fields)


def test_a_log_holds_the_mask_behind_its_observations(tmp_path: Path) -> None:
    columns = gates_log()
    data = read(tmp_path, columns)
    mask = np.stack([columns[name] for name in MASK], axis=1)
    inside = np.arange(ROWS) % 4 < 3  # the last row of a cut episode has no successor
    assert data.info.observation_names == ("seen", *MASK) and data.info.masked
    np.testing.assert_array_equal(data.obs[:, 1:], mask[inside])
    np.testing.assert_array_equal(data.next_obs[:, 1:], mask[np.flatnonzero(inside) + 1])
    ends = np.tile([0, 0, 0, 1], ROWS // 4)
    given = {"observations": np.arange(ROWS)[:, None], "next_observations": np.arange(ROWS)[:, None] + 1}
    given |= {"actions": columns["gate"][:, None], "rewards": columns["pay"], "action_mask": mask}
    recorded = TransitionDataset.from_dict({**given, "terminals": 0 * ends, "timeouts": ends})
    np.testing.assert_array_equal(recorded.next_obs[:3, 1:], mask[1:4])
    assert recorded.next_obs[3, 1:].tolist() == [1.0, 1.0, 1.0]  # nobody told of what came then
    rows = np.zeros((2, 1))
    with pytest.raises(DataError, match="action_mask must come with rows in time order"):
        TransitionDataset(rows, rows, rows, rows, rows, action_mask=mask)


@pytest.mark.parametrize("algo", ["discrete_cql", "iql", "awac", "crr", "bc"])
def test_masks_of_a_log_are_heeded_by_every_export(algo: str, tmp_path: Path) -> None:
    settings: dict[str, Any] = {**LEARN, "normalize_observations": True, "dataset_in_memory": algo != "iql"}
    settings |= {"crr": {"weight_type": "exp"}}.get(algo, {})
    config = tiny_config(algo, tmp_path, env_id=None, total_timesteps=150, algo_kwargs=settings)
    kept = {name: value for name, value in config.algo_kwargs.items() if not name.startswith("dataset_s")}
    run = train(config.replace(algo_kwargs=kept), dataset=read(tmp_path, gates_log())).run_dir
    policy = rl_training.load_policy(run)
    obs = OPEN + np.float32([5.5, 0, 0, 0])
    seen = policy.prepared(torch.from_numpy(obs))[:, 1:]
    np.testing.assert_allclose(seen, OPEN[:, 1:], atol=1e-6, err_msg="a mask is not normalised")
    if algo != "bc":  # which does as was done
        assert policy.predict(obs).tolist() == BEST
    for ending in ("safetensors", "onnx", "pt") if algo in ("discrete_cql", "iql") else ():  # kinds of actors
        file = export_checkpoint(run, tmp_path / f"policy.{ending}")
        if ending == "pt":
            answer = torchscript_outputs(file.read_bytes(), ["action"])(obs, {})["action"]
        else:
            answer = rl_training.load_policy(file).predict(obs)
        assert answer.tolist() == policy.predict(obs).tolist()
    (choice,) = np.unique(np.take_along_axis(obs[:, 1:], policy.predict(obs).astype(int), axis=1))
    assert choice == 1.0
    controller = policy.controller()
    controller.reset()
    assert controller.act(obs[1]).action.tolist() == policy.predict(obs[1]).tolist()


@pytest.mark.parametrize(
    ("changes", "fields", "words"),
    [
        ({"open_1": np.full(ROWS, 2.0)}, {}, r"action_mask must be 1 or 0, row 0 has \[.*2.0.*\]"),
        ({}, {"history": 2}, "action_mask cannot stand beside formulas over time, history or rate"),
    ],
)
def test_masks_that_cannot_be_heeded_are_refused(
    changes: dict[str, Any], fields: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises((ConfigError, DataError), match=words):
        read(tmp_path, gates_log(**changes), **fields)


@pytest.mark.parametrize("masked", [False, True])
def test_several_networks_of_values_act_by_their_mean_in_every_file(masked: bool, tmp_path: Path) -> None:
    spaces = Spaces.of(4, [MODE], masked=masked)
    plan, generator = NetworkPlan(hidden_sizes=(8,)), torch.Generator().manual_seed(0)
    actor = EpsilonGreedy(4, 3, plan, levels=(3,), num_critics=3, masked=masked, generator=generator)
    policy = Policy(actor, spaces).snapshot()
    draws = np.random.default_rng(0)
    obs = draws.normal(size=(50, 4)).astype(np.float32)
    obs[:, 1:] = draws.integers(0, 2, size=(50, 3))
    values = actor.critic.values(torch.from_numpy(obs))
    assert (values[0].argmax(-1) != values.mean(0).argmax(-1)).any(), "one network alone would differ"
    wanted = 5.0 + values.mean(0).argmax(-1).numpy()
    assert policy.predict(obs)[:, 0].tolist() == wanted.tolist()
    state = {**BARE_STATE, "config": {**BARE_STATE["config"], "algo_kwargs": {}}}
    for ending in ("onnx", "safetensors"):
        file = export_policy(policy, state, tmp_path / f"p.{ending}")
        assert rl_training.load_policy(file).predict(obs)[:, 0].tolist() == wanted.tolist()
    script = export_policy(policy, state, tmp_path / "p.pt").read_bytes()
    assert torchscript_outputs(script, ["action"])(obs, {})["action"][:, 0].tolist() == wanted.tolist()


def test_a_guard_of_choices_begins_with_the_level_taken_most_often(tmp_path: Path) -> None:
    data = read(tmp_path, gates_log(gate=np.where(np.arange(ROWS) % 3, 2, 0)), ())
    spaces = Spaces.of(1, [Choice((0.0, 1.0, 2.0))])
    guard = guard_of_rows([data], spaces, GuardConfig())
    assert guard.facts.fallback.action == (2.0,)  # the mean would be 1.33, which is no level


def test_a_policy_of_a_masked_log_is_judged_among_masks_that_were_logged(tmp_path: Path) -> None:
    """Highest open gate: pay 2, or 1 where that one is shut, a third of the time; 5 / 3 a step, twice that
    with gamma .5. The log takes either of two gates: 1 a step.
    """

    class Highest:
        def predict(self, obs: Any) -> Any:
            return np.where(np.asarray(obs)[:, 3] > 0.5, 2.0, 1.0)[:, None]

    settings: dict[str, Any] = {"gamma": 0.5, "updates": 600, "model_updates": 600, "members": 4}
    judgement = judge({"highest": Highest()}, read(tmp_path, gates_log()), importance=False, **settings)
    (told,) = judgement.policies
    assert told.verdict == "better", told.sentence
    assert told.low < 10 / 3 < told.high


@pytest.mark.slow
def test_a_mask_is_a_flag_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    log = gates_log(gate=np.array(["low", "mid", "high"])[gates_log()["gate"]])
    written(tmp_path, log)
    columns = ["--obs", "seen", "--action", "gate{low,mid,high}", "--reward", "pay", "--episode", "run"]
    mask = ["--action-mask", "open_0,open_1", "--action-mask", "open_2"]
    assert main(["data", "inspect", "log.csv", *columns, *mask]) == 0
    assert "open_2" in capsys.readouterr().out
    settings = {"gamma": 0.0, "hidden_sizes": [16], "learning_rate": 0.01, "judge_at_end": False}
    short = ["--set", "total_timesteps=150", "--set", "algo_kwargs.compile=false"]
    short += [part for key, value in settings.items() for part in ("--set", f"algo_kwargs.{key}={value}")]
    start = ["train", "--algo", "discrete_cql", "--data", "log.csv", "-q", *columns, *short]
    assert main([*start, *mask]) == 0
    run = capsys.readouterr().out.strip()
    (tmp_path / "ask.csv").write_text("open_2,open_1,open_0,seen\n1,1,1,5.5\n0,1,1,5.5\n0,0,1,5.5\n")
    assert main(["predict", "-k", run, "--obs-file", "ask.csv"]) == 0
    assert json.loads(capsys.readouterr().out) == [["high"], ["mid"], ["low"]]
    assert main([*start, *mask[:2]]) == 2
    assert "action_mask must have 3 numbers, one per level of each choice" in capsys.readouterr().err


def test_masks_that_fit_nothing_are_refused(tmp_path: Path) -> None:
    config = tiny_config("iql", tmp_path, env_id=None)
    wrong = gates_log()
    wrong["open_0"] = (wrong["gate"] != 0).astype(float)
    row = int(np.flatnonzero(wrong["gate"] == 0)[0])
    with pytest.raises(DataError, match=r"row \d+ takes gate = 0, which its action_mask rules out") as told:
        train(config, dataset=read(tmp_path, wrong))
    assert str(row - row // 4) in str(told.value)
    with pytest.raises(DataError, match=r"action_mask must have 3 numbers, one per level of each .*, got 2"):
        read(tmp_path, gates_log(), MASK[:2])
    with pytest.raises(ConfigError, match="action_mask must be known to both: the environment has one"):
        train(config.replace(env_id=GATES), dataset=read(tmp_path, gates_log(), ()))
