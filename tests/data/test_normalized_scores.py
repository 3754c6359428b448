"""Reference returns belong to the environments they were measured in."""

from pathlib import Path

import pytest

from rl_training.data.convert import DatasetLocation, read_location, write_location
from rl_training.data.info import DataInfo, ReferenceReturns, published_reference, reference_returns
from rl_training.data.log import EpisodeLog
from rl_training.experiment.config import TrainConfig
from rl_training.runtime.offline_data import build_offline_dataset
from toy_logs import SPACES, episodes

OWN = ReferenceReturns(-10.0, 90.0, "my measurement")


@pytest.mark.parametrize(
    ("env_id", "mean_return", "score"),
    [
        ("halfcheetah-medium-v2", 12135.0, 100.0),
        ("HalfCheetah-v2", -280.178953, 0.0),
        ("hopper-medium-replay-v2", 3000.0, 92.800897),
        ("door-human-v1", 2880.5693087298737, 100.0),
        ("antmaze-large-diverse-v2", 0.5, 50.0),
    ],
)
def test_published_scores(env_id: str, mean_return: float, score: float) -> None:
    reference = published_reference(env_id)
    assert reference is not None and reference.source == f"D4RL {env_id}"
    assert reference.normalized_score(mean_return) == pytest.approx(score, abs=1e-5)


@pytest.mark.parametrize("env_id", ["HalfCheetah-v5", "Hopper-v4", "Walker2d-v3", "Pendulum-v1", None])
def test_other_versions_have_no_published_reference(env_id: str | None) -> None:
    assert published_reference(env_id) is None
    assert reference_returns(env_id) is None


def test_the_user_comes_first_then_the_data_then_the_table() -> None:
    env_id = "HalfCheetah-v2"
    chosen = reference_returns(env_id, configured=(0.0, 10.0), carried=OWN, carried_env_id=env_id)
    assert chosen == ReferenceReturns(0.0, 10.0, "configuration")
    assert reference_returns(env_id, carried=OWN, carried_env_id=env_id) == OWN
    assert reference_returns("package:HalfCheetah-v2", carried=OWN, carried_env_id=env_id) == OWN
    assert reference_returns(env_id, carried=OWN, carried_env_id="Hopper-v2") == published_reference(env_id)


def test_a_score_names_its_reference() -> None:
    assert OWN.score_metrics(40.0) == {
        "eval_normalized_score": 50.0,
        "eval_normalized_score_reference": "my measurement",
    }
    assert ReferenceReturns.from_dict(OWN.to_dict()) == OWN


def test_references_travel_with_the_data_into_a_run(tmp_path: Path) -> None:
    info = DataInfo(source="toy", spaces=SPACES, env_id="Toy-v0", reference=OWN)
    log = EpisodeLog.from_arrays(episodes([3, 4], [True, False]), info=info)
    for place in (DatasetLocation("hdf5", tmp_path / "a.hdf5"), DatasetLocation("npz", tmp_path / "a.npz")):
        write_location(log, place)
        assert read_location(place).info.reference == OWN
    minari = DatasetLocation("minari", tmp_path, "toy/scores-v0")
    write_location(log, minari)
    assert read_location(minari).info.reference == OWN
    settings = {"dataset_kind": "npz", "dataset_path": str(tmp_path / "a.npz")}
    config = TrainConfig(algo="bc", total_timesteps=1, algo_kwargs=settings)
    assert build_offline_dataset(config).reference is None  # no environment to score in
    told = {**settings, "reference_min_return": 0.0, "reference_max_return": 2.0}
    prepared = build_offline_dataset(TrainConfig(algo="bc", total_timesteps=1, algo_kwargs=told))
    assert prepared.summary["reference"] == {"minimum": 0.0, "maximum": 2.0, "source": "configuration"}
