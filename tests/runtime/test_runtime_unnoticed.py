"""Faults that were planted and that no test noticed, each stated by what a user sees when it is there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest

import rl_training
from rl_training import TransitionDataset
from rl_training.cli import main
from rl_training.data import load_transition_dataset

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")  # of the data: what becomes of it is tested

SMALL: dict[str, Any] = {
    "hidden_sizes": [16, 16],
    "batch_size": 16,
    "eval_interval": 0,
    "eval_episodes": 0,
    "log_interval": 5,
    "compile": False,
}
REWARD, LEVEL = 7.0, 1000.0


class Plant(gym.Env[Any, Any]):
    """Observations around 1000, a reward of 7 in every step, episodes of 5 steps; remembers its actions."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = gym.spaces.Box(-3.0, 1.0, (1,), np.float32)

    def __init__(self) -> None:
        self.played: list[float] = []

    def observed(self) -> Any:
        return (LEVEL + self.np_random.normal(size=2)).astype(np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observed(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        self.played.append(float(action[0]))
        return self.observed(), REWARD, False, self.steps == 5, {}


def logged(rows: int = 60) -> dict[str, Any]:
    """Rows of the same plant, with rewards of 0 and 500."""
    draws = np.random.default_rng(0)
    obs = (LEVEL + draws.normal(size=(rows, 2))).astype(np.float32)
    ends = np.arange(rows) % 6 == 5
    return {
        "observations": obs,
        "actions": draws.uniform(-3.0, 1.0, size=(rows, 1)).astype(np.float32),
        "rewards": 500.0 * (np.arange(rows) % 4 == 0).astype(np.float32),
        "next_observations": np.where(ends[:, None], obs, np.roll(obs, -1, axis=0)),
        "terminals": np.zeros(rows, dtype=bool),
        "timeouts": ends,
    }


# ---- units


UNITS: dict[str, Any] = {
    **SMALL,
    "gamma": 0.01,  # so that the targets are hardly more than the rewards
    "learning_rate": 1e-9,
    "normalize_observations": True,
    "normalize_reward": True,
    "reward_shift": 0.5,
}


def assert_learned_in_the_datas_units(result: Any, metrics: dict[str, float]) -> None:
    """Rewards of the plant are targets in the units of the data, and its observations are near zero.

    The networks hardly learn here: from observations near zero their values are, too. From ones around 1000
    they are in the hundreds.
    """
    summary = json.loads((result.run_dir / "summary.json").read_text(encoding="utf-8"))
    rewards = summary["dataset"]["reward_transform"]
    assert rewards["scale"] != 1.0 and rewards["shift"] != 0.0
    target = REWARD * rewards["scale"] + rewards["shift"]
    assert metrics["target_q_mean"] == pytest.approx(target, abs=0.05)
    assert metrics["critic_loss"] == pytest.approx(2.0 * target**2, rel=0.25)


@pytest.mark.parametrize("algo", ["SAC", "TD3"])
def test_what_an_online_run_collects_beside_data_is_in_the_datas_units(algo: str, tmp_path: Path) -> None:
    settings = {**UNITS, "learning_starts": 20, "buffer_capacity": 60, "offline_share": 0.0}
    agent = getattr(rl_training, algo)(env=Plant, output_dir=str(tmp_path), total_timesteps=40, **settings)
    result = agent.learn(logged(), quiet=True)
    assert_learned_in_the_datas_units(result, result.metrics)


@pytest.mark.parametrize("algo", ["IQL", "CalQL"])  # Cal-QL keeps whole episodes, IQL rows
def test_what_fine_tuning_collects_is_in_the_datas_units(algo: str, tmp_path: Path) -> None:
    agent = getattr(rl_training, algo)(
        env=Plant,
        output_dir=str(tmp_path),
        total_timesteps=5,
        online_timesteps=30,
        offline_data="drop",
        **UNITS,
    )
    result = agent.learn(logged(), quiet=True)
    metrics = result.metrics
    if algo == "CalQL":  # whose critic_loss is not that of the targets alone
        assert metrics["returns_to_go_mean"] == pytest.approx(metrics["target_q_mean"], rel=0.02)
        metrics = {**metrics, "critic_loss": metrics["critic_loss"] - metrics["cql_penalty"]}
    assert_learned_in_the_datas_units(result, metrics)


def test_what_a_loop_of_ones_own_observes_is_in_the_datas_units(tmp_path: Path) -> None:
    agent = rl_training.TD3BC(output_dir=str(tmp_path), total_timesteps=5, env=Plant, **UNITS)
    agent.learn(logged(), quiet=True)
    session = agent.go_live(30, offline_data="drop")
    plant = Plant()
    obs, _ = plant.reset(seed=0)
    for _ in range(30):
        following, reward, terminated, truncated, _ = plant.step(agent.act(obs))
        agent.observe(reward, following, terminated, truncated)
        metrics = agent.update()
        obs = plant.reset()[0] if truncated else following
    assert_learned_in_the_datas_units(session.close(), metrics)


def test_rewards_without_data_are_in_the_units_of_the_config(tmp_path: Path) -> None:
    settings = {**SMALL, "gamma": 0.0, "learning_starts": 20, "reward_scale": 2.0, "reward_shift": 1.0}
    agent = rl_training.SAC(env=Plant, output_dir=str(tmp_path), total_timesteps=40, **settings)
    result = agent.learn(quiet=True)
    assert result.metrics["target_q_mean"] == pytest.approx(2.0 * REWARD + 1.0, rel=1e-5)


# ---- exploration


@pytest.mark.parametrize("live", [False, True])
def test_exploration_stays_inside_the_bounds_also_in_what_is_learned_from(live: bool, tmp_path: Path) -> None:
    """Noise far beyond the bounds: what is played and what is imitated afterwards lies on them."""
    plant = Plant()
    settings = {**SMALL, "learning_rate": 1e-9, "exploration_noise": 50.0, "offline_data": "drop"}
    agent = rl_training.TD3BC(env=lambda: plant, output_dir=str(tmp_path), total_timesteps=1, **settings)
    agent.learn(logged(), quiet=True)
    if live:
        with agent.go_live(30):
            obs, _ = plant.reset(seed=0)
            for _ in range(30):
                obs, reward, *_ = plant.step(agent.act(obs))
                agent.observe(reward, obs)
                metrics = agent.update()
    else:
        metrics = agent.finetune(timesteps=30, quiet=True).metrics
    assert set(plant.played) == {-3.0, 1.0}
    assert 0.5 < metrics["bc_loss"] <= 4.0  # squares of differences in [-1, 1]


# ---- the guard


@pytest.fixture(scope="module")
def guarded_agent(tmp_path_factory: pytest.TempPathFactory) -> Any:
    agent = rl_training.TD3BC(
        output_dir=str(tmp_path_factory.mktemp("guard")), total_timesteps=5, env=Plant, **SMALL
    )
    agent.learn(logged(), quiet=True)
    return agent


USUAL, STRANGE = (LEVEL, LEVEL), (0.0, 5 * LEVEL)


@pytest.mark.parametrize("exported", [False, True])
def test_a_reset_guard_holds_nothing_of_the_episode_before(
    guarded_agent: Any, exported: bool, tmp_path: Path
) -> None:
    guarded_agent.make_guard(TransitionDataset.from_dict(logged()), fallback="hold")
    path = guarded_agent.export(tmp_path / "policy.safetensors")
    loop = (rl_training.load_policy(path) if exported else guarded_agent.policy).guarded()
    usual, first = guarded_agent.predict(USUAL), guarded_agent.policy.guard_facts.fallback.action
    assert abs(usual - first) > 1e-3
    assert loop.act(USUAL).action == pytest.approx(usual)
    assert loop.act(STRANGE).action == pytest.approx(usual), "held"
    loop.reset()
    told = loop.act(STRANGE)
    first = np.asarray(logged()["actions"]).mean()
    assert told.flagged and told.action == pytest.approx(first), "nothing to hold but the log's mean action"


def test_a_guard_in_a_live_loop_holds_nothing_of_the_episode_before(tmp_path: Path) -> None:
    agent = rl_training.TD3BC(
        output_dir=str(tmp_path), total_timesteps=5, env=Plant, **{**SMALL, "exploration_noise": 0.0}
    )
    agent.learn(logged(), quiet=True)
    guard = agent.make_guard(TransitionDataset.from_dict(logged()), fallback="hold")
    session = agent.go_live(10, guard=guard, warmup_steps_online=9, offline_data="drop")
    usual = session.act(USUAL)
    session.observe(REWARD, STRANGE)
    assert session.act(STRANGE) == pytest.approx(usual), "held"
    session.observe(REWARD, USUAL, truncated=True)
    assert session.act(STRANGE, first=True) == pytest.approx(np.asarray(logged()["actions"]).mean()), (
        "nothing to hold but the log's mean action"
    )
    session.close()


@pytest.mark.parametrize("ends", [True, False])
def test_the_limit_of_a_guard_comes_from_rows_that_it_is_not_fitted_to(
    guarded_agent: Any, ends: bool, tmp_path: Path
) -> None:
    """Every episode is at a place of its own: those held out lie many reaches from all others.

    Where episodes are not known, single rows are held out, and these are at home.
    """
    draws = np.random.default_rng(3)
    places = 100.0 * draws.normal(size=(20, 1, 2))
    obs = (places + 0.1 * draws.normal(size=(20, 30, 2))).reshape(-1, 2)
    cut = ends & (np.arange(600) % 30 == 29)
    rows = TransitionDataset(
        obs, np.zeros((600, 1)), np.zeros(600), np.roll(obs, -1, axis=0), np.zeros(600), truncations=cut
    )
    guarded_agent.make_guard(rows, centres=48, percentile=90.0)
    facts = rl_training.load_policy(guarded_agent.export(tmp_path / "policy.safetensors")).metadata["guard"]
    assert facts["rows"] + facts["held_out_rows"] == 600
    assert facts["held_out_beyond"] <= 0.1
    if ends:
        assert facts["threshold"] > 20.0 and facts["held_out_rows"] % 30 == 0
    else:
        assert facts["threshold"] < 3.0


# ---- early checkpoints


def test_an_early_checkpoint_is_fine_tuned_as_the_shorter_run_that_it_is(tmp_path: Path) -> None:
    """From step 10 of 30: the same as a run of 10 offline steps, and nothing of the 20 that are left."""

    def run(folder: str, **changes: Any) -> Any:
        agent = rl_training.TD3BC(
            "td3_bc/pendulum",
            **{
                **SMALL,
                "dataset_kind": "random",
                "dataset_size": 60,
                "env_kwargs": {"max_episode_steps": 10},
            },
            **{"output_dir": str(tmp_path / folder), "checkpoint_interval": 10, **changes},
        )
        agent.learn(quiet=True)
        return agent

    parent = run("parent", total_timesteps=30)
    whole = run("whole", total_timesteps=10, online_timesteps=15)
    early = parent.result.run_dir / "checkpoints" / "step_10.safetensors"
    out = str(tmp_path / "out")
    assert main(["finetune", "--checkpoint", str(early), "--timesteps", "15", "--output-dir", out, "-q"]) == 0
    (found,) = (tmp_path / "out").iterdir()
    summary = json.loads((found / "summary.json").read_text(encoding="utf-8"))["metrics"]
    assert (summary["global_step"], summary["gradient_steps"], summary["env_steps"]) == (25, 25, 15)
    points = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    tuned = rl_training.TD3BC.load(found)
    np.testing.assert_array_equal(tuned.predict(points), whole.predict(points))
    assert np.abs(tuned.predict(points) - parent.predict(points)).max() > 1e-4


# ---- tables


COLUMNS = {"observations": ["x"], "actions": ["u"], "reward": "r"}


def table(path: Path, rows: list[str], header: str) -> Path:
    path.write_text("\n".join([header, *rows]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("role", "obs", "actions"),
    [
        ("terminated", [0.0, 1.0, 3.0, 3.0], [0.1, 0.2, 0.4, 0.5]),
        ("truncated", [0.0, 3.0, 3.0], [0.1, 0.4, 0.5]),  # a row that is cut off has no successor
    ],
)
def test_no_value_is_held_across_an_end_that_only_a_flag_marks(
    role: str, obs: list[float], actions: list[float], tmp_path: Path
) -> None:
    """The first row after the end has no value to hold: it is left out, and 1.0 does not run on into it."""
    rows = ["0,0.1,0,0", "1,0.2,0,1", ",0.3,0,0", "3,0.4,0,0", ",0.5,0,0", "5,0.6,0,0"]
    path = table(tmp_path / "log.csv", rows, "x,u,r,end")
    dataset = load_transition_dataset(
        dataset_path=path, columns={**COLUMNS, role: "end"}, missing_values="hold"
    )
    assert dataset.obs.flatten().tolist() == obs
    assert dataset.actions.flatten().tolist() == pytest.approx(actions)


@pytest.mark.parametrize(("gap", "episodes"), [(2.0, 1), (2.001, 2), (1.999, 1)])
def test_only_a_gap_longer_than_max_gap_ends_an_episode(gap: float, episodes: int, tmp_path: Path) -> None:
    times = [0.0, 1.0, 2.0, 2.0 + gap, 3.0 + gap, 4.0 + gap]
    rows = [f"{index},{0.1 * index},0,{time}" for index, time in enumerate(times)]
    path = table(tmp_path / "log.csv", rows, "x,u,r,t")
    dataset = load_transition_dataset(dataset_path=path, columns={**COLUMNS, "time": "t"}, max_gap=2.0)
    assert len(dataset) == 6 - episodes
    assert dataset.obs.flatten().tolist() == (
        [0.0, 1.0, 2.0, 3.0, 4.0] if episodes == 1 else [0.0, 1.0, 3.0, 4.0]
    )


@pytest.mark.parametrize("cell", ["", "inf", "word"])
def test_the_first_row_of_a_file_is_named_with_its_own_file(
    cell: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    good = ["0,0.1,0", "1,0.2,0", "2,0.3,0"]
    table(tmp_path / "a.csv", good, "x,u,r")
    table(tmp_path / "b.csv", [f"{cell},0.1,0", *good], "x,u,r")
    table(tmp_path / "c.csv", good, "x,u,r")
    options = ["--obs", "x", "--action", "u", "--reward", "r"]
    assert main(["data", "convert", str(tmp_path / "*.csv"), str(tmp_path / "out.npz"), *options]) == 2
    told = capsys.readouterr().err
    assert "b.csv" in told and "row 0" in told and "a.csv" not in told and "row 3" not in told


@pytest.mark.parametrize("late", ["0.5", "1e-3"])
@pytest.mark.parametrize("separator", [",", ";"])
def test_no_decimal_comma_is_guessed_where_nothing_speaks_for_one(
    separator: str, late: str, tmp_path: Path
) -> None:
    """Whole numbers for as long as one looks, a decimal point later."""
    rows = [f"{index},{index % 3},0" for index in range(400)] + [f"{late},1,0", "7,0,0"]
    path = table(
        tmp_path / "log.csv", [row.replace(",", separator) for row in rows], f"x{separator}u{separator}r"
    )
    dataset = load_transition_dataset(dataset_path=path, columns=COLUMNS)
    assert dataset.obs.flatten()[400].item() == pytest.approx(float(late))


def test_a_decimal_comma_is_guessed_where_there_is_one(tmp_path: Path) -> None:
    rows = [f"{index},5;{index % 3};0" for index in range(10)]
    dataset = load_transition_dataset(
        dataset_path=table(tmp_path / "log.csv", rows, "x;u;r"), columns=COLUMNS
    )
    assert dataset.obs.flatten().tolist() == [index + 0.5 for index in range(9)]


@pytest.mark.parametrize("empty", ["level", "valve", "score", None])
def test_empty_cells_are_proposed_to_be_held_wherever_they_are(
    empty: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["level", "valve", "score"]
    rows = [
        ",".join(
            "" if name == empty and row == 4 else str(0.1 * row * (place + 1))
            for place, name in enumerate(names)
        )
        for row in range(12)
    ]
    path = str(table(tmp_path / "log.csv", rows, ",".join(names)))
    assert main(["data", "inspect", path, "--json"]) == 0
    guess = json.loads(capsys.readouterr().out)
    assert guess["mapping"] == {"observations": ["level"], "actions": ["valve"], "reward": "score"}
    assert ("--missing-values hold" in guess["flags"]) is (empty is not None)
    assert main(["data", "inspect", path]) == 0
    assert ("missing_values: hold" in capsys.readouterr().out) is (empty is not None)


# ---- RLDS


def test_rlds_steps_without_a_last_flag_end_where_the_next_episode_begins(tmp_path: Path) -> None:
    """The second of three episodes lacks `is_last`, and the third begins with its last observation."""
    first = np.array([1, 0, 0, 1, 0, 0, 1, 0, 0], dtype=bool)
    last = np.array([0, 0, 1, 0, 0, 0, 0, 0, 1], dtype=bool)
    steps = np.array([0, 1, 2, 3, 4, 5, 5, 7, 8], dtype=np.float32)[:, None]
    np.savez(
        tmp_path / "steps.npz",
        observation=steps,
        action=0.1 * steps,
        reward=steps[:, 0],
        is_first=first,
        is_last=last,
        is_terminal=last & (np.arange(9) == 8),
    )
    dataset = load_transition_dataset("rlds", dataset_path=tmp_path / "steps.npz")
    assert dataset.obs.flatten().tolist() == [0, 1, 3, 4, 5, 7]
    assert dataset.next_obs.flatten().tolist() == [1, 2, 4, 5, 7, 8]
    assert dataset.dones.tolist() == [0, 0, 0, 0, 0, 1]
    assert dataset.episode_ends().tolist() == [False, True, False, True, False, True]


# ---- sweeps


BASE: dict[str, Any] = {
    "algo": "bc",
    "env_id": "Pendulum-v1",
    "env_kwargs": {"max_episode_steps": 10},
    "total_timesteps": 20,
    "eval_episodes": 1,
    "log_interval": 5,
    "checkpoint_interval": 10,
    "algo_kwargs": {"hidden_sizes": [16], "dataset_kind": "random", "dataset_size": 40, "compile": False},
}


def run_files(folder: Path, seed: int, settings: dict[str, Any], summary: dict[str, Any] | None) -> Path:
    """The directory of a run of a sweep, as if it had been trained; without a summary it has not ended."""
    folder.mkdir(parents=True)
    values = {**settings, "seed": seed, "output_dir": str(folder.parent)}
    (folder / "config.yaml").write_text(json.dumps(values), encoding="utf-8")
    if summary is not None:
        (folder / "summary.json").write_text(json.dumps(summary), encoding="utf-8")
    return folder


def finished(value: float, reason: str = "finished") -> dict[str, Any]:
    return {"stop_reason": reason, "metrics": {"global_step": 20, "eval_return_mean": value}}


def rows_of(text: str) -> dict[str, list[str]]:
    """Run -> state and return, of the table that the command prints."""
    cells = [line.split() for line in text.splitlines()]
    return {words[0]: words[1:-1] for words in cells if len(words) > 2 and words[-1].startswith("/")}


@pytest.mark.parametrize(
    ("stack", "changes", "groups"),
    [
        ("auto", {}, [[0, 1, 2]]),
        ("auto", {"algo_kwargs.hidden_sizes": [16, 64]}, [[0, 1, 2]]),
        ("auto", {"algo_kwargs.hidden_sizes": [16, 65]}, [[0], [1], [2]]),
        ("auto", {"total_timesteps": 100_000}, [[0, 1, 2]]),
        ("auto", {"total_timesteps": 100_001}, [[0], [1], [2]]),
        (True, {"total_timesteps": 100_001}, [[0, 1, 2]]),
        (False, {}, [[0], [1], [2]]),
    ],
)
def test_a_sweep_trains_seeds_together_where_it_pays(
    stack: str | bool, changes: dict[str, Any], groups: list[list[int]], tmp_path: Path
) -> None:
    """All runs are done here: the plan is written down, and nothing is trained."""
    out = tmp_path / "out"
    for seeds, wanted in (([0, 1, 2], groups), ([0, 1, 2, 3], [*groups, [3]])):  # a group never changes
        settings = json.loads(json.dumps(BASE))
        for name, value in changes.items():
            section, dot, key = name.rpartition(".")
            (settings[section] if dot else settings)[key] = value
        for seed in seeds:
            if not (folder := out / "base" / f"bc-Pendulum-v1-s{seed}").exists():
                run_files(folder, seed, settings, finished(-1.0))
        file = tmp_path / "s.yaml"
        file.write_text(json.dumps({"base": settings, "seeds": seeds, "stack": stack}), encoding="utf-8")
        assert main(["sweep", str(file), "--output-dir", str(out), "--quiet"]) == 0
        plan = json.loads((out / "groups.json").read_text(encoding="utf-8"))["groups"]
        assert plan == [[f"base-s{seed}" for seed in group] for group in wanted]
        assert not any((out / "logs").iterdir())


def test_a_sweep_is_every_variant_at_every_point_of_the_grid_with_every_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    grid = {"algo_kwargs.batch_size": [4, 8], "algo_kwargs.learning_rate": [0.001]}
    variants = [{"name": "a"}, {"total_timesteps": 30}]
    study = {"base": BASE, "variants": variants, "grid": grid, "seeds": [3, 5]}
    file, out = tmp_path / "s.yaml", tmp_path / "out"
    file.write_text(json.dumps(study), encoding="utf-8")
    for variant, steps in (("a", 20), ("total_timesteps=30", 30)):
        for size in (4, 8):
            kwargs = {**BASE["algo_kwargs"], "batch_size": size, "learning_rate": 0.001}
            settings = {**BASE, "total_timesteps": steps, "algo_kwargs": kwargs}
            for seed in (3, 5):
                run_files(
                    out / f"{variant}-batch_size={size}" / f"bc-Pendulum-v1-s{seed}",
                    seed,
                    settings,
                    finished(-2.0),
                )
    assert main(["sweep", str(file), "--output-dir", str(out)]) == 0
    names = [f"{v}-batch_size={size}" for v in ("a", "total_timesteps=30") for size in (4, 8)]
    rows = [name for name in rows_of(capsys.readouterr().out) if name != "highest"]  # the closing line
    assert rows == [f"{name}-s{seed}" for name in names for seed in (3, 5)]


@pytest.mark.slow
def test_a_sweep_skips_what_is_done_resumes_what_was_saved_and_retries_what_crashed(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Runs that are done, stopped by a signal, or saved at step 10, and one that can never work."""
    out, file = tmp_path / "out", tmp_path / "s.yaml"
    variants = [{"name": "good"}, {"name": "broken", "env_id": "Nowhere-v0"}]
    study = {"base": BASE, "variants": variants, "seeds": [0, 1, 2], "stack": False, "retries": 1}
    file.write_text(json.dumps(study), encoding="utf-8")
    names = [out / "good" / f"bc-Pendulum-v1-s{seed}" for seed in range(3)]
    broken = [out / "broken" / f"bc-Nowhere-v0-s{seed}" for seed in range(3)]
    run_files(names[0], 0, BASE, finished(-123.4))
    run_files(names[1], 1, BASE, finished(-1.0, "signal 15"))
    saved = rl_training.BC(rl_training.TrainConfig(**{**BASE, "seed": 2, "output_dir": str(names[2].parent)}))
    assert saved.learn(quiet=True).run_dir == names[2]
    for file_of_the_end in ("summary.json", "checkpoints/step_20.safetensors"):
        (names[2] / file_of_the_end).unlink()
    (names[2] / "failure.json").write_text('{"error": "the disk is gone"}', encoding="utf-8")
    begun = (names[2] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()[:2]
    for seed in (0, 1):
        run_files(broken[seed], seed, {**BASE, "env_id": "Nowhere-v0"}, finished(-5.0 - seed))
    assert main(["sweep", str(file), "--output-dir", str(out), "--workers", "2"]) == 1
    shown = capfd.readouterr()
    table = rows_of(shown.out)
    assert {name: words[0] for name, words in table.items()} == {
        **dict.fromkeys(("good-s0", "good-s1", "good-s2", "broken-s0", "broken-s1"), "done"),
        "broken-s2": "crashed",
    }
    assert table["good-s0"] == ["done", "-123.4"] and table["broken-s1"] == ["done", "-6.0"]
    assert "error: broken-s2 is not done: " in shown.err and "Nowhere" in shown.err
    # What was done already was not touched, and no process was started for it.
    assert sorted(path.name for path in (out / "logs").iterdir()) == [
        "broken-s2.log",
        "good-s1.log",
        "good-s2.log",
    ]
    assert not (names[0] / "checkpoints").exists()
    # A crash is tried again as often as was asked for.
    assert (out / "logs" / "broken-s2.log").read_text(encoding="utf-8").count("error: ") == 2
    assert "Nowhere" in json.loads((broken[2] / "failure.json").read_text(encoding="utf-8"))["error"]
    # What a signal stopped before it had saved begins anew; what was saved goes on from there.
    assert (names[1] / "checkpoints" / "step_20.safetensors").is_file()
    assert json.loads((names[1] / "summary.json").read_text(encoding="utf-8"))["stop_reason"] == "finished"
    lines = (names[2] / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    assert lines[:2] == begun and [json.loads(line)["step"] for line in lines] == [5, 10, 15, 20, 20]
    assert not (names[2] / "failure.json").exists()
