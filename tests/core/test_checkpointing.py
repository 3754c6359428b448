"""Checkpoints: what goes in comes out bit for bit, and no harm to a file ends in a traceback."""

import errno
import json
import multiprocessing
import os
import random
import resource
import signal
import struct
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from rl_training.core import checkpoints as checkpoint_format
from rl_training.core.checkpoints import (
    FORMAT_VERSION,
    best_checkpoint_path,
    checkpoint_path,
    list_checkpoints,
    load_checkpoint,
    newest_checkpoint,
    prune_checkpoints,
    read_header,
    resolve_checkpoint,
    save_checkpoint,
    strip_subtree,
)
from rl_training.core.errors import CheckpointError

TORCH_DTYPES = [
    torch.bool, torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32, torch.uint64,
    torch.int64, torch.bfloat16, torch.float16, torch.float32, torch.float64,
]  # fmt: skip


def assert_same(left: Any, right: Any) -> None:
    """Equal in type, dtype, shape and bits; NaN equals NaN, -0.0 differs from 0.0."""
    assert type(left) is type(right)
    if isinstance(left, dict):
        assert list(left) == list(right)
        for key in left:
            assert_same(left[key], right[key])
    elif isinstance(left, list):
        assert len(left) == len(right)
        for one, other in zip(left, right, strict=True):
            assert_same(one, other)
    elif isinstance(left, torch.Tensor):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        as_bytes = [part.detach().clone(memory_format=torch.contiguous_format) for part in (left, right)]
        assert as_bytes[0].untyped_storage().tolist() == as_bytes[1].untyped_storage().tolist()
    elif isinstance(left, np.ndarray):
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()
    else:
        assert repr(left) == repr(right)


def round_trip(tmp_path: Path, state: dict[str, Any]) -> dict[str, Any]:
    path = tmp_path / "state.safetensors"
    save_checkpoint(path, state)
    loaded = load_checkpoint(path)
    assert loaded.pop("format_version") == FORMAT_VERSION
    return loaded


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    path = tmp_path / "step_7.safetensors"
    save_checkpoint(
        path, {"learner": {"w": torch.arange(6.0)}, "replay": {"obs": torch.ones(50, 3)}, "algo": "sac"}
    )
    return path


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (5,), (2, 3, 4)], ids=str)
def test_tensor_of_every_dtype_and_shape_keeps_its_bits(
    tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]
) -> None:
    size = int(np.prod(shape)) * dtype.itemsize
    bits = torch.randint(0, 2 if dtype is torch.bool else 256, (size,), dtype=torch.uint8)
    tensor = bits.view(dtype).reshape(shape) if size else torch.empty(shape, dtype=dtype)
    assert_same(round_trip(tmp_path, {"x": tensor}), {"x": tensor})


def test_scalars_lists_and_empty_containers_survive(tmp_path: Path) -> None:
    state = {
        "none": None,
        "flags": [True, False],
        "big": 2**200 + 1,
        "floats": [0.1, -0.0, 1e-320, float("nan"), float("inf"), -float("inf")],
        "text": 'quote " slash / tilde ~ newline \n zero \0 ünïcode 🤖',
        "empty": {"dict": {}, "list": [], "text": ""},
        "mixed": [[1, [2.5]], {"a": None}, torch.ones(2)],
    }
    assert_same(round_trip(tmp_path, state), state)


def test_tuples_become_lists_and_numpy_scalars_become_numbers(tmp_path: Path) -> None:
    state = {
        "shape": (256, (1, 2)),
        "f": np.float32(0.1),
        "i": np.int64(-3),
        "b": np.bool_(True),
        "n": np.float64("nan"),
    }
    expected = {"shape": [256, [1, 2]], "f": float(np.float32(0.1)), "i": -3, "b": True, "n": float("nan")}
    assert_same(round_trip(tmp_path, state), expected)


def test_numpy_arrays_come_back_as_numpy_arrays(tmp_path: Path) -> None:
    matrix = np.random.default_rng(0).normal(size=(4, 6))
    read_only = np.arange(5)
    read_only.flags.writeable = False
    state = {
        "plain": matrix, "scalar": np.array(3, np.uint64), "empty": np.zeros((0, 2), np.float32),
        "transposed": matrix.T, "reversed": matrix[::-1], "strided": matrix[:, ::2], "bool": matrix > 0,
        "fixed": read_only, "one": matrix[:1, ::6],
    }  # fmt: skip
    assert_same(round_trip(tmp_path, state), state)
    big_endian = round_trip(tmp_path, {"x": matrix.astype(">f8")})["x"]
    np.testing.assert_array_equal(big_endian, matrix)
    big_endian[0, 0] = 1.0  # loaded arrays can be changed, as the replay buffer does


def test_shared_and_non_contiguous_tensors_are_saved_by_value(tmp_path: Path) -> None:
    base = torch.arange(24.0).reshape(4, 6)
    parameter = torch.nn.Parameter(torch.ones(3))
    state = {"a": base, "same": base, "row": base[1], "column": base[:, 1], "t": base.T, "p": parameter,
             "expanded": torch.tensor([1.5]).expand(4), "one": base[:1, ::6]}  # fmt: skip
    loaded = round_trip(tmp_path, state)
    assert_same(loaded, state | {"p": parameter.detach()})
    loaded["a"].zero_()
    assert loaded["same"].sum() == base.sum()


def test_chunked_writing_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    state = {
        "lanes": torch.randn(3, 40, 5)[:, :29],
        "t": torch.randn(31, 7).T,
        "n": np.random.rand(13, 3)[:, ::-1],
    }
    monkeypatch.setattr(checkpoint_format, "CHUNK_BYTES", 64)
    assert_same(round_trip(tmp_path, state), state)


def test_random_generators_continue_where_they_stopped(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(3)
    rng = np.random.default_rng(3)
    torch.rand(5, generator=generator), rng.random(5)
    state = {"torch": generator.get_state(), "numpy": rng.bit_generator.state}
    expected = torch.rand(4, generator=generator), rng.random(4)
    loaded = round_trip(tmp_path, state)
    restored_torch, restored_numpy = torch.Generator(), np.random.default_rng()
    restored_torch.set_state(loaded["torch"])
    restored_numpy.bit_generator.state = loaded["numpy"]
    assert torch.equal(torch.rand(4, generator=restored_torch), expected[0])
    np.testing.assert_array_equal(restored_numpy.random(4), expected[1])


arrays = st.builds(
    lambda shape, dtype, kind: kind(np.arange(int(np.prod(shape))).reshape(shape).astype(dtype)),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from(["bool", "uint8", "int64", "float32", "float64"]),
    st.sampled_from([np.asarray, torch.from_numpy]),
)
scalars = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
# Keys that could be mistaken for separators, escapes and the file format's own names.
keys = st.text("/~$.01aé", max_size=4) | st.sampled_from(
    ["$tensor", "$float", "__metadata__", "$$tensor", ""]
)
trees = st.recursive(
    scalars | arrays,
    lambda children: st.dictionaries(keys, children, max_size=4) | st.lists(children, max_size=3),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None)
@given(state=st.dictionaries(keys, trees, max_size=5))
def test_any_nested_state_survives(tmp_path_factory: pytest.TempPathFactory, state: dict[str, Any]) -> None:
    assert_same(round_trip(tmp_path_factory.getbasetemp(), state), state)


def test_file_is_plain_safetensors_with_one_json_string(saved: Path) -> None:
    tensors = load_file(saved)
    assert set(tensors) == {"/learner/w", "/replay/obs"}
    length = struct.unpack("<Q", saved.read_bytes()[:8])[0]
    assert length % 8 == 0
    metadata = json.loads(saved.read_bytes()[8 : 8 + length])["__metadata__"]
    header = json.loads(metadata["rl_training"])
    assert header["algo"] == "sac" and header["format_version"] == FORMAT_VERSION


@pytest.mark.parametrize(
    ("state", "where"),
    [
        ({"callbacks": {"seen": {1, 2}}}, "/callbacks/seen: set"),
        ({"m": np.array(["a"])}, "/m: dtype str"),
        ({"m": torch.zeros(2, dtype=torch.complex64)}, "/m: dtype complex64"),
        ({"m": torch.eye(2).to_sparse()}, "/m: a sparse tensor"),
        ({"optimizer": {0: 1.0}}, "/optimizer: its keys must be strings, got 0"),
    ],
)
def test_what_cannot_be_saved_is_named(tmp_path: Path, state: dict[str, Any], where: str) -> None:
    with pytest.raises(TypeError, match="cannot save") as caught:
        save_checkpoint(tmp_path / "x.safetensors", state)
    assert where in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_header_that_no_reader_would_accept_is_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint_format, "MAX_HEADER_BYTES", 1000)
    with pytest.raises(ValueError, match="keep long lists of numbers in arrays"):
        save_checkpoint(tmp_path / "x.safetensors", {"history": list(range(1000))})
    assert list(tmp_path.iterdir()) == []


def test_header_shows_everything_but_tensors(saved: Path) -> None:
    assert read_header(saved) == {
        "learner": {"w": None},
        "replay": {"obs": None},
        "algo": "sac",
        "format_version": FORMAT_VERSION,
    }


def test_skipped_and_stripped_subtrees_are_gone(saved: Path) -> None:
    whole = load_checkpoint(saved)
    assert_same(load_checkpoint(saved, skip=("replay",)), {k: v for k, v in whole.items() if k != "replay"})
    size = saved.stat().st_size
    strip_subtree(saved, "replay")
    assert_same(load_checkpoint(saved), {k: v for k, v in whole.items() if k != "replay"})
    assert saved.stat().st_size < size - 50 * 3 * 4 + 1
    before = saved.stat().st_mtime_ns
    strip_subtree(saved, "replay")
    assert saved.stat().st_mtime_ns == before, "a file without the subtree is not rewritten"


def test_checkpoints_are_ordered_by_number(tmp_path: Path) -> None:
    for step in (9, 100, 20):
        save_checkpoint(checkpoint_path(tmp_path, step), {"step": step})
    save_checkpoint(best_checkpoint_path(tmp_path), {"step": 9})
    folder = tmp_path / "checkpoints"
    (folder / "step_200.safetensors.tmp").write_bytes(b"half a file")
    (folder / "step_x.safetensors").write_bytes(b"")
    assert [path.name for path in list_checkpoints(tmp_path)] == [
        f"step_{n}.safetensors" for n in (9, 20, 100)
    ]
    assert list_checkpoints(folder) == list_checkpoints(tmp_path)
    newest = folder / "step_100.safetensors"
    assert newest_checkpoint(tmp_path) == newest
    assert {resolve_checkpoint(path) for path in (tmp_path, folder, newest)} == {newest}
    assert load_checkpoint(tmp_path)["step"] == 100


def test_pruning_keeps_the_newest_and_the_best(tmp_path: Path) -> None:
    for step in (1, 2, 10, 11):
        save_checkpoint(checkpoint_path(tmp_path, step), {})
    save_checkpoint(best_checkpoint_path(tmp_path), {})
    assert prune_checkpoints(tmp_path, 2) == [checkpoint_path(tmp_path, step) for step in (1, 2)]
    assert prune_checkpoints(tmp_path, 2) == []
    names = {path.name for path in (tmp_path / "checkpoints").iterdir()}
    assert names == {"step_10.safetensors", "step_11.safetensors", "best.safetensors"}
    with pytest.raises(ValueError, match=r"keep must be >= 1, got 0"):
        prune_checkpoints(tmp_path, 0)


def load_error(path: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    with pytest.raises(CheckpointError):
        read_header(path)
    return message


def test_missing_paths_say_what_to_give(tmp_path: Path) -> None:
    assert "does not exist; give a .safetensors file" in load_error(tmp_path / "nothing.safetensors")
    assert "holds no step_<n>.safetensors" in load_error(tmp_path)
    assert newest_checkpoint(tmp_path / "nothing") is None


def test_foreign_files_are_told_apart(tmp_path: Path) -> None:
    path = tmp_path / "foreign.safetensors"
    for content in (
        b"hello world, this is a text file",
        b"\x80\x02}q\x00." * 50,
        os.urandom(500),
        b"{}" * 40,
    ):
        path.write_bytes(content)
        assert "is not a checkpoint of rl_training" in load_error(path)
    save_file({"w": torch.ones(2)}, path)
    assert "is not a checkpoint of rl_training" in load_error(path)
    save_file({"w": torch.ones(2)}, path, metadata={"format": "pt"})
    assert "is not a checkpoint of rl_training" in load_error(path)


def test_truncated_file_is_reported_at_every_length(saved: Path) -> None:
    content = saved.read_bytes()
    assert len(content) > 600
    for length in [*range(0, len(content), 7), len(content) - 1]:
        saved.write_bytes(content[:length])
        assert ("is empty" if length == 0 else "is truncated or damaged") in load_error(saved)
    saved.write_bytes(content + b"x")
    assert "is truncated or damaged" in load_error(saved)


def write_header(path: Path, header: str) -> None:
    save_file({"/w": torch.ones(2)}, path, metadata={"rl_training": header})


def test_newer_format_asks_for_an_upgrade(tmp_path: Path) -> None:
    path = tmp_path / "new.safetensors"
    write_header(path, json.dumps({"format_version": FORMAT_VERSION + 1, "state": {"unknown": "layout"}}))
    assert "newer version of rl_training (file format 3" in load_error(path)
    assert "upgrade rl_training" in load_error(path)


@pytest.mark.parametrize(
    "header",
    ["", "{", "[]", "null", "{}", '{"format_version": "1"}', '{"format_version": 0}', "[" * 100_000,
     '{"format_version": ' + "9" * 5000 + "}"],
    ids=lambda header: header[:24],
)  # fmt: skip
def test_damaged_json_is_reported(tmp_path: Path, header: str) -> None:
    path = tmp_path / "damaged.safetensors"
    write_header(path, header)
    assert "is damaged" in load_error(path)


def test_tensor_that_the_header_names_but_the_file_lacks_is_reported(tmp_path: Path) -> None:
    path = tmp_path / "damaged.safetensors"
    write_header(path, json.dumps({"format_version": 1, "v": {"$tensor": "torch"}}))
    with pytest.raises(CheckpointError, match="damaged"):
        load_checkpoint(path)


def test_flipped_header_bytes_never_end_in_another_error(saved: Path) -> None:
    content = saved.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    rng = random.Random(0)
    refused = 0
    for _ in range(400):
        damaged = bytearray(content)
        for _ in range(rng.randint(1, 3)):
            damaged[rng.randrange(8 + length)] ^= 1 << rng.randrange(8)
        saved.write_bytes(damaged)
        try:
            load_checkpoint(saved)
        except CheckpointError:
            refused += 1
    assert refused > 200


def full_disk(descriptor: int) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_full_disk_keeps_the_previous_checkpoint(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = saved.read_bytes()
    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(
        CheckpointError, match="No space left on device; earlier checkpoints are unchanged"
    ) as caught:
        save_checkpoint(saved, {"learner": {"w": torch.zeros(6)}})
    assert str(saved) in str(caught.value)
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved], "the temporary file is removed"


def test_stale_temporary_file_is_replaced(saved: Path) -> None:
    stale = saved.with_name(saved.name + ".tmp")
    stale.write_bytes(b"x" * 10_000)
    save_checkpoint(saved, {"n": 1})
    assert load_checkpoint(saved)["n"] == 1
    assert not stale.exists()


def test_unwritable_target_is_reported(tmp_path: Path) -> None:
    blocker = tmp_path / "file"
    blocker.write_text("not a directory")
    with pytest.raises(CheckpointError, match="cannot save checkpoint"):
        save_checkpoint(blocker / "step_1.safetensors", {})
    (tmp_path / "folder.safetensors").mkdir()
    with pytest.raises(CheckpointError, match="cannot save checkpoint"):
        save_checkpoint(tmp_path / "folder.safetensors", {})
    assert not list(tmp_path.glob("*.tmp"))


def save_with_size_limit(path: Path, limit: int, answer: Connection) -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        save_checkpoint(path, {"w": torch.zeros(100_000)})
        answer.send("saved")
    except CheckpointError as problem:
        answer.send(str(problem))


def save_steps_until_killed(run_dir: Path, first_step: int, started: Connection) -> None:
    started.send(os.getpid())
    for step in range(first_step, first_step + 100_000):
        values = torch.full((20_000,), float(step))
        save_checkpoint(
            checkpoint_path(run_dir, step), {"step": step, "w": values, "replay": {"rows": values}}
        )
        for older in list_checkpoints(run_dir)[:-1]:
            strip_subtree(older, "replay")
        prune_checkpoints(run_dir, 3)


@pytest.fixture(scope="module")
def processes() -> Any:
    """A server that has imported torch once and forks a fresh process in milliseconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["hypothesis", "pytest", "safetensors.torch"])
    return context


def test_operating_system_refusing_to_write_more_is_reported(saved: Path, processes: Any) -> None:
    before = saved.read_bytes()
    receiver, sender = processes.Pipe(duplex=False)
    process = processes.Process(target=save_with_size_limit, args=(saved, 100_000, sender))
    process.start()
    assert receiver.poll(60)
    assert "File too large; earlier checkpoints are unchanged" in receiver.recv()
    process.join()
    assert saved.read_bytes() == before
    assert list(saved.parent.iterdir()) == [saved]


@pytest.mark.slow
def test_kill_at_any_moment_leaves_the_newest_checkpoint_readable(tmp_path: Path, processes: Any) -> None:
    rng = random.Random(0)
    kills_during_a_write = 0
    last_step = 0
    for _ in range(50):
        receiver, sender = processes.Pipe(duplex=False)
        process = processes.Process(target=save_steps_until_killed, args=(tmp_path, last_step + 1, sender))
        process.start()
        assert receiver.poll(60)
        pid = receiver.recv()
        time.sleep(rng.uniform(0.0, 0.06))
        os.kill(pid, signal.SIGKILL)
        process.join()
        assert process.exitcode == -signal.SIGKILL
        kills_during_a_write += any((tmp_path / "checkpoints").glob("*.tmp"))
        newest = newest_checkpoint(tmp_path)
        if newest is None:
            continue
        state = load_checkpoint(newest)
        assert state["step"] >= last_step, "a finished checkpoint is never lost"
        last_step = state["step"]
        assert newest.name == f"step_{last_step}.safetensors"
        for tensor in (state["w"], state["replay"]["rows"]):
            assert torch.equal(tensor, torch.full((20_000,), float(last_step)))
    assert last_step > 10
    assert kills_during_a_write > 0
    save_checkpoint(checkpoint_path(tmp_path, last_step + 1), {})
    assert newest_checkpoint(tmp_path) == checkpoint_path(tmp_path, last_step + 1)
