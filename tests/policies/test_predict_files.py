"""`rl-training predict` over files: every format in and out, in pieces, and nothing half-written."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers import tiny_config, train
from rl_training.cli import main
from rl_training.core.spaces import Spaces
from rl_training.policies import files as observation_files
from rl_training.policies.acting import ActingPolicy
from rl_training.policies.files import predict_file
from rl_training.runs.evaluate import predict_checkpoint
from rl_training.runs.export import export_checkpoint

Rows = np.ndarray[Any, Any]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tiny_config("bc", tmp_path_factory.mktemp("runs"))).run_dir


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(observation_files, "CHUNK_ROWS", 16)


def observations(count: int = 100) -> Rows:
    return np.random.default_rng(3).normal(size=(count, 3)).astype(np.float32)


def save_csv(path: Path, rows: Rows) -> None:
    np.savetxt(path, rows, delimiter=",", header="cos,sin,speed", comments="", fmt="%.9g")


def save_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.table({f"x{index}": column for index, column in enumerate(rows.T)}), path)


def save_list_parquet(path: Path, rows: Rows) -> None:
    pq.write_table(pa.table({"reward": rows[:, 0], "obs": list(rows)}), path)


def save_double_npy(path: Path, rows: Rows) -> None:
    np.save(path, rows.astype(np.float64))


SAVERS: dict[str, Callable[[Path, Rows], None]] = {
    "a.csv": save_csv,
    "a.npy": np.save,
    "double.npy": save_double_npy,
    "a.npz": lambda path, rows: np.savez(path, obs=rows, rewards=rows[:, 0]),
    "packed.npz": lambda path, rows: np.savez_compressed(path, anything=rows),
    "a.parquet": save_parquet,
    "lists.parquet": save_list_parquet,
}


def load_actions(path: Path) -> Rows:
    if path.suffix == ".csv":
        assert path.read_text().startswith("action_0\n")
        return np.loadtxt(path, delimiter=",", skiprows=1, ndmin=2, dtype=np.float32)
    if path.suffix == ".parquet":
        return np.stack([column.to_numpy() for column in pq.read_table(path).columns], axis=1)
    loaded = np.load(path)
    return loaded if path.suffix == ".npy" else loaded["actions"]  # type: ignore[no-any-return]


def stream(checkpoint: Path, source: Path, out: Path) -> int:
    return main(["predict", "-k", str(checkpoint), "--obs-file", str(source), "--out", str(out)])


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", SAVERS)
def test_every_format_in(
    name: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = observations()
    SAVERS[name](tmp_path / name, rows)
    out = tmp_path / "out" / "actions.npy"
    assert stream(run_dir, tmp_path / name, out) == 0
    assert capsys.readouterr().out == f"{out}: 100 actions\n"
    np.testing.assert_allclose(load_actions(out), predict_checkpoint(run_dir, rows), rtol=0, atol=1e-6)
    assert list(out.parent.iterdir()) == [out]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("suffix", [".csv", ".npy", ".npz", ".parquet"])
def test_every_format_out(suffix: str, run_dir: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "obs.npy", observations())
    assert stream(run_dir, tmp_path / "obs.npy", tmp_path / f"actions{suffix}") == 0
    actions = load_actions(tmp_path / f"actions{suffix}")
    assert actions.dtype == np.float32 and actions.shape == (100, 1)
    np.testing.assert_allclose(actions, predict_checkpoint(run_dir, observations()), rtol=0, atol=1e-6)


@pytest.mark.parametrize("suffix", [".onnx", ".safetensors"])
def test_exported_policies_predict_too(
    suffix: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    policy = export_checkpoint(run_dir, tmp_path / f"policy{suffix}")
    np.save(tmp_path / "obs.npy", observations())
    assert stream(policy, tmp_path / "obs.npy", tmp_path / "actions.npy") == 0
    expected = predict_checkpoint(run_dir, observations())
    np.testing.assert_allclose(load_actions(tmp_path / "actions.npy"), expected, rtol=0, atol=1e-5)
    capsys.readouterr()
    assert main(["predict", "-k", str(policy), "--obs", "0, 0, 0"]) == 0
    (action,) = json.loads(capsys.readouterr().out)
    assert action == pytest.approx(float(predict_checkpoint(run_dir, [0.0, 0.0, 0.0])[0]), abs=1e-5)


class Recorder(ActingPolicy):
    """A policy that notes how many rows it is given at a time."""

    spaces = Spaces(3, (-1.0, -1.0), (1.0, 1.0))

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def act(self, obs: Any, deterministic: bool = True) -> Any:
        self.sizes.append(len(obs))
        return np.asarray(obs)[:, :2]


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("name", SAVERS)
def test_a_file_is_taken_in_pieces(name: str, tmp_path: Path) -> None:
    rows = observations(50)
    SAVERS[name](tmp_path / name, rows)
    policy, seen = Recorder(), []
    count = predict_file(policy, tmp_path / name, tmp_path / "o.npz", lambda *told: seen.append(told))
    assert count == sum(policy.sizes) == 50
    assert max(policy.sizes) == 16
    assert seen[-1] == (50, 1.0) and [rows for rows, _ in seen] == sorted(rows for rows, _ in seen)
    np.testing.assert_array_equal(load_actions(tmp_path / "o.npz"), rows[:, :2])


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize(
    ("name", "content", "complaint"),
    [
        ("a.csv", "1,2,3\n1,2\n", r"line 2 must hold 3 numbers, got '1,2'"),
        ("a.csv", "x,y,z\n" + "1,2,3\n" * 40 + "1,2,oops\n", r"line 42 must hold 3 numbers, got '1,2,oops'"),
        ("a.csv", "1,2,3\n1,nan,3\n", "observation 2 has NaN or infinity"),
        ("a.csv", "1,2,3\n" * 20 + "1,1e300,3\n", "observation 21 has NaN or infinity"),
        ("a.csv", "1,2,3,4\n", r"must hold rows of 3 numbers, as this policy observes, got shape \(1, 4\)"),
        ("a.csv", "", "holds no observations"),
        ("a.csv", "a,b,c\n", "holds no observations"),
        ("a.npy", "no array", r"is not a \.npy file of numbers"),
        ("a.npz", "no archive", r"is not a \.npz file of numbers"),
        ("a.parquet", "no table", r"is not a \.parquet file of numbers"),
        ("a.h5", "", r"must end in \.csv, \.npy, \.npz, \.parquet to be streamed"),
        ("a.json", "[]", r"must end in \.csv"),
    ],
)
def test_bad_files_leave_nothing(
    name: str,
    content: str,
    complaint: str,
    run_dir: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / name).write_text(content)
    assert stream(run_dir, tmp_path / name, tmp_path / "actions.npz") == 2
    message = capsys.readouterr().err
    assert re.search(complaint, message) and message.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == [name]


def damaged_npz(path: Path) -> None:
    whole = io.BytesIO()
    np.savez(whole, obs=observations(1000))
    content = bytearray(whole.getvalue())
    content[2000:2100] = b"\0" * 100  # inside the rows: the checksum no longer holds
    path.write_bytes(content)


BAD_ARRAYS: dict[str, tuple[Callable[[Path], None], str]] = {
    "columns.npz": (lambda p: np.savez(p, obs=np.asfortranarray(observations())), "row-major order"),
    "flat.npz": (lambda p: np.savez(p, obs=np.zeros(3)), r"got shape \(3,\)"),
    "text.npz": (lambda p: np.savez(p, obs=np.array([["a", "b", "c"]])), "must hold rows of 3 numbers"),
    "names.npz": (
        lambda p: np.savez(p, a=np.zeros(3), b=np.zeros(3)),
        "must hold an array 'obs', it holds a, b",
    ),
    "damaged.npz": (damaged_npz, "Bad CRC-32"),
    "ragged.parquet": (
        lambda p: pq.write_table(pa.table({"obs": [[1.0], [2.0, 3.0]]}), p),
        "differ in length",
    ),
    "null.parquet": (
        lambda p: pq.write_table(pa.table({"a": [1.0, None], "b": [1.0, 2.0], "c": [1.0, 2.0]}), p),
        "observation 2 has NaN",
    ),
}


@pytest.mark.parametrize("name", BAD_ARRAYS)
def test_bad_arrays_leave_nothing(
    name: str, run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save, complaint = BAD_ARRAYS[name]
    save(tmp_path / name)
    assert stream(run_dir, tmp_path / name, tmp_path / "actions.csv") == 2
    message = capsys.readouterr().err
    assert re.search(complaint, message) and message.count("\n") == 1
    assert [file.name for file in tmp_path.iterdir()] == [name]


def test_bad_targets_and_options(run_dir: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "obs.npy"
    np.save(source, observations())
    assert stream(run_dir, source, tmp_path / "actions.txt") == 2
    assert "--out must end in .csv, .npy, .npz, .parquet" in capsys.readouterr().err
    assert stream(run_dir, source, source) == 2
    assert "--out must not be the file that is read" in capsys.readouterr().err
    assert stream(run_dir, source, source / "actions.npy") == 2
    assert "cannot write" in capsys.readouterr().err
    assert stream(run_dir, tmp_path / "none.csv", tmp_path / "actions.npy") == 2
    assert "No such file" in capsys.readouterr().err
    assert main(["predict", "-k", str(run_dir), "--obs", "1,2,3", "--out", str(tmp_path / "o.npy")]) == 2
    assert "--out needs --obs-file FILE" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["obs.npy"]
