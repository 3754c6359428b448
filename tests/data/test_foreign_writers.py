"""Logs written in the formats of other projects: what is read back is what was written, or it is refused."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl_training.cli import main
from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.data.convert import read_location, source_location, target_location, write_location
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog

pytest.importorskip("pyarrow")

KINDS = {"robomimic": "hdf5", "neorl2": "npz", "rlds": "npz", "jsonl": "jsonl"}


def log_of(rng: np.random.Generator, *, successors: bool, rewards: bool = True) -> EpisodeLog:
    """Episodes of 1 to 6 steps that terminate or are cut, in double precision."""
    obs, next_obs, terminated, truncated = [], [], [], []
    for _ in range(int(rng.integers(1, 6))):
        length = int(rng.integers(1, 7))
        states = rng.normal(size=(length + 1, 3))
        obs.append(states[:-1])
        next_obs.append(states[1:])
        last = np.arange(length) == length - 1
        ended = bool(rng.integers(0, 2))
        terminated.append(last & ended)
        truncated.append(last & ~np.array(ended))
    rows = sum(map(len, obs))
    columns: dict[str, Any] = {"obs": np.concatenate(obs), "actions": rng.uniform(-1, 1, (rows, 2))}
    columns |= {"terminated": np.concatenate(terminated), "truncated": np.concatenate(truncated)}
    columns["rewards"] = rng.normal(size=rows) if rewards else np.zeros(rows, np.float32)
    if successors:
        columns["next_obs"] = np.concatenate(next_obs)
    info = DataInfo(
        "log",
        Spaces(3, (-1.0, -1.0), (1.0, 1.0)),
        observation_names=("a", "b", "c"),
        units={"a": "m"},
        rewards_known=rewards,
    )
    return EpisodeLog.build(columns, info=info)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), kind=st.sampled_from(sorted(KINDS)), rewards=st.booleans())
def test_what_is_written_is_what_is_read(
    seed: int, kind: str, rewards: bool, tmp_path_factory: pytest.TempPathFactory
) -> None:
    rng = np.random.default_rng(seed)
    successors = kind in ("neorl2", "rlds") or bool(rng.integers(0, 2))
    log = log_of(rng, successors=successors, rewards=rewards or kind in ("neorl2", "jsonl"))
    path = tmp_path_factory.mktemp("written") / f"log.{KINDS[kind]}"
    write_location(log, target_location(f"{kind}:{path}"))
    place = source_location(str(path))
    assert place.kind == kind
    found = read_location(place, exact=True)
    for name in ("obs", "actions", "rewards", "terminated", "truncated", "next_obs"):
        one, two = getattr(log, name), getattr(found, name)
        assert (one is None) == (two is None), name
        if one is not None:
            np.testing.assert_array_equal(two, one, name)
            assert two.dtype == one.dtype, name
    if kind != "jsonl":  # like CSV it holds rows alone
        assert found.info.spaces == log.info.spaces and found.info.features == log.info.features
        assert found.info.rewards_known == log.info.rewards_known


def test_what_a_format_has_no_place_for_is_refused(tmp_path: Path) -> None:
    log = log_of(np.random.default_rng(0), successors=False)
    for kind in ("neorl2", "rlds"):
        with pytest.raises(DataError, match="needs the observation after every step, which this log does"):
            write_location(log, target_location(f"{kind}:{tmp_path / 'x.npz'}"))
    timed = replace(log, further={"durations": np.ones(len(log), np.float32)})
    with pytest.raises(DataError, match="robomimic has no place for durations; read the log without them"):
        write_location(timed, target_location(f"robomimic:{tmp_path / 'x.hdf5'}"))
    for kind in ("lerobot", "ogbench"):
        with pytest.raises(DataError, match=f"dataset_kind '{kind}' can be read but not written"):
            write_location(log, target_location(f"{kind}:{tmp_path / 'x'}"))
    assert not list(tmp_path.iterdir())


def test_the_command_writes_them_too(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_location(
        log_of(np.random.default_rng(1), successors=True), target_location(str(tmp_path / "log.npz"))
    )
    target = tmp_path / "demos.hdf5"
    assert main(["data", "convert", str(tmp_path / "log.npz"), f"robomimic:{target}"]) == 0
    assert main(["data", "convert", str(tmp_path / "log.npz"), f"robomimic:{target}"]) == 2
    assert "exists already" in capsys.readouterr().err
    assert main(["data", "convert", str(tmp_path / "log.npz"), "log.odd"]) == 2
    assert "KIND:FILE, such as robomimic:log.hdf5" in capsys.readouterr().err
