"""From a recipe in the config to training data: order of processing, spaces, mixes, collected data."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import tiny_config, train
from rl_training.core.errors import ConfigError, DataError
from rl_training.data import TransitionDataset
from rl_training.data.convert import DatasetLocation, write_location
from rl_training.data.disk import CACHE_VARIABLE
from rl_training.experiment.config import TrainConfig
from rl_training.policies.policy import load_saved_policy
from rl_training.runtime.offline_data import build_offline_dataset, infer_env_spaces
from toy_logs import (
    LENGTHS,
    SPACES,
    TERMINATED,
    as_log,
    episodes,
    load,
    run_python,
    write_hdf5,
    write_npz,
)

RANDOM = {"dataset_kind": "random"}

SUPPORT = Path(__file__).parents[1] / "support"


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def config(**kwargs: Any) -> TrainConfig:
    algo, env_id = kwargs.pop("algo", "cal_ql"), kwargs.pop("env_id", None)
    return TrainConfig(algo=algo, env_id=env_id, total_timesteps=10, algo_kwargs=kwargs)


def toy_file(folder: Path, name: str = "log.npz", **options: Any) -> str:
    place = DatasetLocation("npz", folder / name)
    write_location(as_log(episodes(LENGTHS, TERMINATED, **options)), place)
    return str(place.path)


def test_processing_follows_the_fixed_order(tmp_path: Path) -> None:
    path = toy_file(tmp_path, successors=False, optional=True)
    raw = load(DatasetLocation("npz", Path(path)))
    settings: dict[str, Any] = {"dataset_kind": "npz", "dataset_path": path, "gamma": 0.9}
    plain = build_offline_dataset(config(**settings)).dataset
    expected = raw.with_discounted_returns_to_go(0.9).returns_to_go
    assert plain.returns_to_go is not None and expected is not None
    torch.testing.assert_close(plain.returns_to_go, expected)  # those of the file are not trusted
    changed = build_offline_dataset(config(**settings, reward_scale=2.0, reward_shift=-1.0, reward_clip=1.5))
    returns = raw.with_reward_transform(
        scale=2.0, shift=-1.0, clip=1.5, returns_to_go_gamma=0.9
    ).returns_to_go
    assert changed.dataset.returns_to_go is not None and returns is not None
    torch.testing.assert_close(changed.dataset.returns_to_go, returns)
    given = build_offline_dataset(config(**settings, returns_to_go="given")).dataset
    assert torch.equal(given.returns_to_go, raw.returns_to_go)  # type: ignore[arg-type]
    np.testing.assert_allclose(plain.actions, SPACES.to_unit(raw.actions.numpy()), atol=1e-7)
    np.testing.assert_allclose(plain.next_actions, SPACES.to_unit(raw.next_actions.numpy()), atol=1e-7)


@pytest.mark.parametrize("in_memory", [True, False])
def test_normalisation_covers_what_is_trained_on(tmp_path: Path, in_memory: bool) -> None:
    path = toy_file(tmp_path, successors=False)
    raw = load(DatasetLocation("npz", Path(path)))
    prepared = build_offline_dataset(
        config(
            algo="iql",
            dataset_kind="npz",
            dataset_path=path,
            normalize_observations=True,
            normalize_reward=True,
            dataset_in_memory=in_memory,
        )
    )
    assert prepared.normalizer is not None
    obs = raw.obs.numpy().astype(np.float64)
    np.testing.assert_allclose(prepared.normalizer.mean, obs.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(prepared.normalizer.std, obs.std(axis=0), rtol=1e-5)
    batch = prepared.dataset.gather(torch.arange(len(raw)))
    assert torch.equal(batch["obs"], prepared.normalizer.apply(raw.obs))
    assert torch.equal(batch["next_obs"], prepared.normalizer.apply(raw.next_obs))
    spread = np.ptp(raw.episode_returns())
    np.testing.assert_allclose(prepared.dataset.rewards, raw.rewards * 1000.0 / spread, rtol=1e-5)
    assert prepared.summary["reward_transform"]["scale"] == pytest.approx(1000.0 / spread)


def test_a_dataset_in_memory_goes_the_same_way_and_is_not_changed() -> None:
    given = TransitionDataset.from_log(as_log(episodes(LENGTHS, TERMINATED)))
    before = {name: values.clone() for name, values in given.gather(torch.arange(len(given))).items()}
    prepared = build_offline_dataset(config(normalize_observations=True), dataset=given)
    assert prepared.spaces == SPACES
    assert "returns_to_go" in prepared.dataset.fields
    assert prepared.dataset.obs.mean().abs() < 0.05 and prepared.dataset.actions.abs().max() <= 1.0
    for name, values in before.items():
        assert torch.equal(given.store.whole(name), values), name
    spoiled = TransitionDataset(
        np.full((3, 3), np.nan), np.zeros((3, 2)), np.zeros(3), np.zeros((3, 3)), np.zeros(3), info=given.info
    )
    with pytest.raises(DataError, match="obs has NaN or infinity at row 0"):
        build_offline_dataset(config(), dataset=spoiled)


def test_filters_and_steps_come_after_returns(tmp_path: Path) -> None:
    path = toy_file(tmp_path)
    raw = load(DatasetLocation("npz", Path(path))).with_discounted_returns_to_go(0.99)
    prepared = build_offline_dataset(
        config(dataset_kind="npz", dataset_path=path, top_fraction=0.4, n_step=2, reward_scale=3.0)
    )
    best = np.sort(np.argsort(-raw.episode_returns())[:2])
    rows = np.flatnonzero(np.isin(raw.obs[:, 0], best))
    data = prepared.dataset
    assert len(data) == len(rows) and data.discounts is not None
    assert raw.returns_to_go is not None and data.returns_to_go is not None
    torch.testing.assert_close(data.returns_to_go, 3.0 * raw.returns_to_go[rows])
    limited = build_offline_dataset(config(dataset_kind="npz", dataset_path=path, dataset_size=4)).dataset
    torch.testing.assert_close(limited.returns_to_go, raw.returns_to_go[:4])
    assert len(limited) == 4


@pytest.mark.parametrize("in_memory", [True, False])
def test_the_failure_rule_uses_the_raw_failure_reward(tmp_path: Path, in_memory: bool) -> None:
    columns = episodes([3, 3], [True, False])
    columns["rewards"] = np.array([0, 0, 1, 0, 0, 0], dtype=np.float32)
    write_location(as_log(columns), DatasetLocation("npz", tmp_path / "sparse.npz"))
    prepared = build_offline_dataset(
        config(
            dataset_kind="npz",
            dataset_path=str(tmp_path / "sparse.npz"),
            reward_scale=10.0,
            reward_shift=-5.0,
            failure_reward=0.0,
            gamma=0.99,
            dataset_in_memory=in_memory,
        )
    )
    expected = torch.tensor([-5.0495, -0.05, 5.0, -500.0, -500.0, -500.0])
    torch.testing.assert_close(prepared.dataset.returns_to_go, expected)


def test_actions_outside_the_bounds(tmp_path: Path) -> None:
    columns = episodes([4], [True])
    columns["actions"][2, 1] = 7.0
    write_location(as_log(columns), DatasetLocation("npz", tmp_path / "log.npz"))
    settings: dict[str, Any] = {"dataset_kind": "npz", "dataset_path": str(tmp_path / "log.npz")}
    with pytest.raises(
        DataError, match=r"actions row 2 has 7 for action 1, outside its bounds \[-1, 3\]"
    ) as told:
        build_offline_dataset(config(**settings))
    assert "out_of_bounds: clip" in str(told.value) and "rescale" in str(told.value)
    clipped = build_offline_dataset(config(**settings, out_of_bounds="clip")).dataset
    assert clipped.actions[2, 1] == 1.0
    rescaled = build_offline_dataset(config(**settings, out_of_bounds="rescale", action_clip=0.999)).dataset
    assert rescaled.actions[2, 1] == pytest.approx(0.999) and rescaled.actions[:, 1].min() == pytest.approx(
        -0.999
    )


def test_spaces_come_from_environment_config_or_data(tmp_path: Path) -> None:
    columns = episodes([4], [True])
    bare = write_npz(tmp_path / "bare.npz", columns)
    settings: dict[str, Any] = {"dataset_kind": "npz", "dataset_path": str(bare)}
    with pytest.raises(ConfigError, match=r"env_id is required: .*bare.npz does not carry its action bounds"):
        infer_env_spaces(config(**settings))
    told = config(**settings, action_low=[-2.0], action_high=[2.0, 3.0])
    assert infer_env_spaces(told).to_dict() == {"obs_dim": 3, "action_low": [-2, -2], "action_high": [2, 3]}
    with pytest.raises(ConfigError, match=r"action_low must have 1 or 2 numbers, got 3"):
        infer_env_spaces(config(**settings, action_low=[0.0, 0.0, 0.0], action_high=[1.0]))
    assert infer_env_spaces(config(dataset_kind="npz", dataset_path=toy_file(tmp_path))) == SPACES
    named = write_hdf5(
        tmp_path / "named.hdf5", {**columns, "actions": columns["actions"][:, :1]}, env_id="Pendulum-v1"
    )
    prepared = build_offline_dataset(config(dataset_kind="hdf5", dataset_path=str(named)))
    assert prepared.spaces.action_high == (2.0,)
    with pytest.raises(DataError, match="actions have 2 numbers per row, but the environment has 1"):
        build_offline_dataset(config(**settings, env_id="Pendulum-v1"))


def test_a_mix_of_files_and_collected_data(tmp_path: Path) -> None:
    random: dict[str, Any] = {"dataset_kind": "random", "dataset_size": 30}
    settings: dict[str, Any] = {
        "dataset_kind": "mix",
        "env_id": "Pendulum-v1",
        "normalize_observations": True,
    }
    parts = [{**random, "weight": 3.0}, {**random, "dataset_seed": 1, "weight": 1.0}]
    mixes = [
        build_offline_dataset(config(**settings, dataset_parts=parts, dataset_in_memory=in_memory)).dataset
        for in_memory in (True, False, True)
    ]
    assert len(mixes[0]) == 40 and not mixes[0].ordered
    for other in mixes[1:]:
        for name in mixes[0].fields:
            assert torch.equal(mixes[0].store.whole(name), other.store.whole(name)), name
    assert mixes[0].obs.mean(dim=0).abs().max() < 1e-5
    write_location(as_log(episodes([4], [True])), DatasetLocation("npz", tmp_path / "other.npz"))
    other_size = {"dataset_kind": "npz", "dataset_path": str(tmp_path / "other.npz")}
    with pytest.raises(DataError, match=r"same dimensions: actions are \(2,\) in .*other.npz but \(1,\)"):
        build_offline_dataset(config(**settings, dataset_parts=[random, other_size]))


def test_returns_of_a_mixed_dataset_are_not_recomputed() -> None:
    mixed = TransitionDataset.from_log(as_log(episodes(LENGTHS, TERMINATED, optional=True))).select_rows(
        torch.arange(5)
    )
    with pytest.raises(DataError, match="returns_to_go cannot be computed on mixed"):
        build_offline_dataset(config(), dataset=mixed)
    given = build_offline_dataset(config(returns_to_go="given"), dataset=mixed).dataset
    assert torch.equal(given.returns_to_go, mixed.returns_to_go)  # type: ignore[arg-type]
    assert (
        "returns_to_go"
        not in build_offline_dataset(
            config(algo="bc"), dataset=mixed.with_fields(["truncations"])
        ).dataset.fields
    )


def digests(**settings: Any) -> list[str]:
    """One fingerprint per field of the prepared data."""
    data = build_offline_dataset(config(env_id="Pendulum-v1", dataset_kind="random", **settings)).dataset
    return [hashlib.sha256(data.store.whole(name).numpy().tobytes()).hexdigest() for name in data.fields]


@pytest.mark.slow
def test_the_random_recipe_gives_the_same_bytes_in_two_processes(own_cache: Path) -> None:
    program = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), str(SUPPORT)]!r}\n"
        "from test_offline_recipes import digests\n"
        "print(digests(dataset_size=450, dataset_seed=5))\n"
    )
    done = run_python(program, own_cache)
    assert done.stdout.strip() == str(digests(dataset_size=450, dataset_seed=5)), done.stderr
    assert done.stdout.strip() != str(digests(dataset_size=450, dataset_seed=6))


def test_random_rows_are_whole_transitions() -> None:
    data = build_offline_dataset(config(env_id="Pendulum-v1", dataset_size=450, dataset_seed=6)).dataset
    assert data.truncations is not None and np.flatnonzero(data.truncations).tolist() == [199, 399, 449]
    assert len(data) == 450 and data.dones.sum() == 0 and data.actions.abs().max() <= 1.0
    inside = ~torch.from_numpy(data.episode_ends())[:-1]
    assert torch.equal(data.next_obs[:-1][inside], data.obs[1:][inside])


def test_collecting_recipes_need_an_environment() -> None:
    with pytest.raises(ConfigError, match="env_id is required: dataset_kind 'random' collects"):
        build_offline_dataset(config())


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"dataset_kind": "npz"}, "algo_kwargs.dataset_path is required by dataset_kind 'npz'"),
        ({"dataset_kind": "checkpoint"}, "algo_kwargs.dataset_checkpoint is required by dataset_kind"),
        ({"dataset_kind": "mix"}, "algo_kwargs.dataset_parts must have at least 2 parts, got 0"),
        (
            {"dataset_kind": "mix", "dataset_parts": [{"dataset_kind": "random", "wieght": 1}, {}]},
            r"algo_kwargs.dataset_parts\[0\].wieght is not a known key \(did you mean 'weight'\?\)",
        ),
        (
            {
                "dataset_kind": "mix",
                "dataset_parts": [{"dataset_kind": "random", "weight": 1.0}, {"dataset_kind": "random"}],
            },
            "dataset_parts must all have a weight, or all have rows",
        ),
        ({"dataset_parts": [{"dataset_kind": "random"}]}, "dataset_parts is used by dataset_kind 'mix' only"),
        ({"reward_clip": [2.0, 1.0]}, "reward_clip must be .*low < high"),
        ({"reward_clip": 0.0}, "reward_clip must be > 0"),
        ({"top_fraction": 0.0}, r"algo_kwargs.top_fraction must be in \(0, 1\], got 0.0"),
        ({"action_low": [0.0]}, "action_low and action_high must be given together"),
        (
            {"reference_min_return": 1.0},
            "reference_min_return and reference_max_return must be given together",
        ),
        (
            {"reference_min_return": 1.0, "reference_max_return": 0.0},
            "reference_max_return must be > reference_min",
        ),
        (
            {"reference_min_return": 1.0, "reference_max_return": 1.0},
            "reference_max_return must be > reference_min",
        ),
    ],
)
def test_a_wrong_recipe_is_refused_before_anything_runs(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        config(**settings)


def test_the_summary_is_plain_data(tmp_path: Path) -> None:
    summary = build_offline_dataset(config(dataset_kind="npz", dataset_path=toy_file(tmp_path))).summary
    assert summary["episodes"] == 5 and summary["transitions"] == 19 and summary["terminations"] == 2
    assert json.loads(json.dumps(summary)) == summary


def test_the_checkpoint_recipe_rolls_out_a_saved_policy(tmp_path: Path) -> None:
    result = train(tiny_config("bc", tmp_path, total_timesteps=5), run_suffix="source")
    policy = load_saved_policy(result.run_dir, device="cpu")
    settings: dict[str, Any] = {"dataset_kind": "checkpoint", "dataset_checkpoint": str(result.run_dir)}
    settings |= {"dataset_size": 60, "env_id": "Pendulum-v1"}
    data = build_offline_dataset(config(**settings)).dataset
    np.testing.assert_allclose(data.actions, policy.act_unit(data.obs.numpy()), atol=1e-6)
    noisy = [build_offline_dataset(config(**settings, dataset_noise=0.3)).dataset.actions for _ in range(2)]
    assert torch.equal(noisy[0], noisy[1])
    assert 0.05 < (noisy[0][:20] - data.actions[:20]).abs().mean() < 1.0
    mixed = build_offline_dataset(config(**settings, dataset_random_share=0.5)).dataset
    same = np.isclose(mixed.actions, policy.act_unit(mixed.obs.numpy()), atol=1e-6).mean()
    assert 0.2 < same < 0.8
    with pytest.raises(DataError, match="dataset_checkpoint must hold a policy for 'toy_envs:Walk-v0'"):
        build_offline_dataset(config(**{**settings, "env_id": "toy_envs:Walk-v0"}))


def test_collected_time_outs_bootstrap_like_any_row() -> None:
    """toy_envs:Count-v0 is cut after 3 steps; its second observation counts the steps."""
    data = build_offline_dataset(config(env_id="toy_envs:Count-v0", dataset_size=9)).dataset
    assert data.truncations is not None and data.truncations.tolist() == [0, 0, 1] * 3
    assert data.dones.sum() == 0
    target = data.rewards + 0.99 * (1 - data.dones) * data.next_obs[:, 1]
    torch.testing.assert_close(target, data.rewards + 0.99 * (data.obs[:, 1] + 1))
