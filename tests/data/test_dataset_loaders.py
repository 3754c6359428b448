"""Every format into the same transitions, bad files into one line."""

import os
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from rl_training.core.errors import ConfigError, DataError
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.data.convert import DatasetLocation, convert, read_location, write_location
from rl_training.data.disk import CACHE_VARIABLE, cached_log
from rl_training.data.reading import DataWarning
from toy_logs import (
    LENGTHS,
    SPACES,
    TERMINATED,
    Columns,
    as_log,
    episodes,
    load,
    run_python,
    write_hdf5,
    write_npz,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def places(folder: Path) -> list[DatasetLocation]:
    return [
        DatasetLocation("hdf5", folder / "log.hdf5"),
        DatasetLocation("npz", folder / "log.npz"),
        DatasetLocation("parquet", folder / "log.parquet"),
        DatasetLocation("minari", folder / "minari", "toy/log-v0"),
    ]


def assert_same(one: TransitionDataset, other: TransitionDataset) -> None:
    assert one.fields == other.fields and len(one) == len(other)
    rows = torch.arange(len(one))
    first, second = one.gather(rows), other.gather(rows)
    for name in one.fields:
        assert torch.equal(first[name], second[name]), name
    np.testing.assert_array_equal(one.episode_returns(), other.episode_returns())


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("optional", [True, False])
@pytest.mark.parametrize("successors", [True, False])
def test_every_format_gives_the_same_batches(
    tmp_path: Path, successors: bool, optional: bool, in_memory: bool
) -> None:
    log = as_log(episodes(LENGTHS, TERMINATED, successors=successors, optional=optional))
    expected = TransitionDataset.from_log(log)
    assert ("returns_to_go" in expected.fields) == optional
    for place in places(tmp_path):
        write_location(log, place)
        found = load(place, in_memory=in_memory)
        assert_same(found, expected)
        assert found.info.spaces == SPACES and found.info.env_id == "Toy-v0"
        generators = [torch.Generator().manual_seed(5) for _ in range(2)]
        batches = [data.sample(7, generator=g) for data, g in zip((found, expected), generators, strict=True)]
        assert all(torch.equal(batches[0][name], batches[1][name]) for name in expected.fields)


def test_double_precision_survives_a_conversion(tmp_path: Path) -> None:
    columns = episodes(LENGTHS, TERMINATED)
    wide = {name: values.astype(np.float64) for name, values in columns.items() if values.dtype == np.float32}
    wide["rewards"] = wide["rewards"] + 1e-12
    path = write_hdf5(tmp_path / "wide.h5", {**columns, **wide}, **SPACES.to_dict())
    previous = DatasetLocation("hdf5", path)
    for place in places(tmp_path):
        convert(previous, place)
        previous = place
    back = read_location(previous, exact=True)
    assert back.rewards.dtype == back.obs.dtype == np.float64
    np.testing.assert_array_equal(back.rewards, wide["rewards"])
    assert load(previous).rewards.dtype == torch.float32


def test_d4rl_files_of_both_styles_agree(tmp_path: Path) -> None:
    columns = episodes([4, 6, 3], [False, True, False])
    with_next = write_hdf5(tmp_path / "v2.hdf5", columns, env_id="Hopper-v5")
    without = write_hdf5(
        tmp_path / "v0.hdf5", {name: v for name, v in columns.items() if name != "next_observations"}
    )
    full, short = load(DatasetLocation("hdf5", with_next)), load(DatasetLocation("hdf5", without))
    assert (len(full), len(short)) == (13, 11)
    assert full.info.env_id == "Hopper-v5"
    np.testing.assert_allclose(full.episode_returns(), short.episode_returns(), rtol=1e-6)
    complete = torch.tensor([0, 1, 2, 4, 5, 6, 7, 8, 9, 10, 11])
    gammas = [data.with_discounted_returns_to_go(0.9).returns_to_go for data in (full, short)]
    assert gammas[0] is not None and gammas[1] is not None
    torch.testing.assert_close(gammas[0][complete], gammas[1])


def test_d3rlpy_version_one_files(tmp_path: Path) -> None:
    """`terminals` is 0 everywhere, `episode_terminals` marks the ends, single values describe the file."""
    columns = episodes([4, 4], [False, False], successors=False)
    ends = columns.pop("timeouts").astype(np.float32)
    columns |= {"episode_terminals": ends, "terminals": np.zeros(8, np.float32)}
    path = write_hdf5(tmp_path / "d3rlpy.h5", columns)
    with h5py.File(path, "a") as file:
        file["version"], file["discrete_action"] = "1.0", False
    dataset = load(DatasetLocation("hdf5", path))
    assert len(dataset) == 6 and dataset.dones.sum() == 0
    assert dataset.truncations is not None and dataset.truncations.tolist() == [0, 0, 1, 0, 0, 1]


@pytest.mark.parametrize("ids", [np.array([3, 3, 3, 9, 9]), np.array(["a", "a", "a", "b", "b"])])
def test_episode_ids_mark_ends(tmp_path: Path, ids: np.ndarray) -> None:
    columns = episodes([3, 2], [False, False], successors=False)
    del columns["timeouts"]
    path = write_npz(tmp_path / "ids.npz", {**columns, "episode_ids": ids})
    dataset = load(DatasetLocation("npz", path))
    assert dataset.obs[:, :2].tolist() == [[0, 0], [0, 1], [1, 0]]
    assert dataset.truncations is not None and dataset.truncations.tolist() == [0, 1, 1]


def test_unmarked_ends_are_found_where_successors_are_recorded(tmp_path: Path) -> None:
    columns = episodes([4, 5, 3], [False, False, True])
    columns["timeouts"][:] = False
    path = write_npz(tmp_path / "unmarked.npz", columns)
    with pytest.warns(DataWarning, match=r"2 episode ends were not marked \(row 3"):
        dataset = load(DatasetLocation("npz", path))
    assert np.flatnonzero(dataset.episode_ends()).tolist() == [3, 8, 11]


def test_shuffled_rows_are_recognised(tmp_path: Path) -> None:
    columns = episodes([30], [True])
    order = np.random.default_rng(0).permutation(30)
    path = write_npz(tmp_path / "shuffled.npz", {name: v[order] for name, v in columns.items()})
    with pytest.warns(DataWarning, match="not in time order"):
        load(DatasetLocation("npz", path))


def test_cut_episodes_without_any_mark_are_pointed_out(tmp_path: Path) -> None:
    columns = episodes([3, 2], [False, True], successors=False)
    del columns["timeouts"]
    with pytest.warns(DataWarning, match="add 'timeouts' or 'episode_ids'"):
        load(DatasetLocation("npz", write_npz(tmp_path / "bare.npz", columns)))


def test_numbered_columns_of_parquet_and_csv(tmp_path: Path) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    columns = episodes([3, 2], [True, False])
    flat = {f"obs_{i}": columns["observations"][:, i] for i in range(3)}
    flat |= {f"action_{i}": columns["actions"][:, i] for i in range(2)}
    flat |= {"reward": columns["rewards"], "terminated": columns["terminals"]}
    flat["episode"] = np.array([0, 0, 0, 1, 1])
    parquet.write_table(pa.table(flat), tmp_path / "wide.parquet")
    table = np.stack([values.astype(np.float64) for values in flat.values()], axis=1)
    np.savetxt(tmp_path / "wide.csv", table, delimiter=",", header=",".join(flat), comments="")
    expected = TransitionDataset.from_dict(
        {name: v for name, v in columns.items() if name not in ("next_observations",)}
    )
    for place in (
        DatasetLocation("parquet", tmp_path / "wide.parquet"),
        DatasetLocation("csv", tmp_path / "wide.csv"),
    ):
        assert_same(load(place), expected)


def test_a_time_out_bootstraps_in_every_format(tmp_path: Path) -> None:
    """The TD target of an episode's last row uses its successor, as in the middle of an episode."""
    for successors in (True, False):
        log = as_log(episodes([6, 6], [False, True], successors=successors))
        for place in places(tmp_path / str(successors)):
            write_location(log, place)
            dataset = load(place)
            assert dataset.truncations is not None
            last = int(dataset.truncations.nonzero()[0])
            for row in (last, last - 1):
                target = dataset.rewards[row] + 0.99 * (1 - dataset.dones[row]) * dataset.next_obs[row].sum()
                assert dataset.next_obs[row, 1] == dataset.obs[row, 1] + 1
                assert target == dataset.rewards[row] + 0.99 * dataset.next_obs[row].sum()


def broken(name: str, values: Any) -> Columns:
    columns = episodes([4, 3], [True, False])
    if values is None:
        del columns[name]
    else:
        columns[name] = values
    return columns


def with_entry(name: str, row: int, value: float) -> Columns:
    columns = episodes([4, 3], [True, False])
    columns[name] = columns[name].astype(np.float32)
    columns[name][row] = value
    return columns


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        (broken("actions", None), r"missing key 'action'; it has next_observations, observations"),
        (broken("terminals", None), r"missing key 'terminations'"),
        (broken("rewards", np.zeros(5)), r"all fields must have the same length, got .*rewards 5"),
        (with_entry("rewards", 5, np.nan), r"rewards has NaN or infinity at row 5"),
        (with_entry("observations", 2, np.inf), r"obs has NaN or infinity at row 2"),
        (with_entry("terminals", 3, 0.5), r"terminated must be 0 or 1 in every row, but row 3 is 0.5"),
        (
            broken("observations", np.zeros((7, 2, 2))),
            r"obs must be one flat vector per row, got shape \(2, 2\)",
        ),
        (broken("observations", np.zeros((7, 0))), r"obs must have at least one number per row, got none"),
        (broken("actions", np.zeros((7, 0))), r"actions must have at least one number per row, got none"),
        (broken("next_observations", np.zeros((7, 5))), r"next_obs have 5 numbers per row, but obs has 3"),
        ({name: v[:0] for name, v in episodes([2], [True]).items()}, r"the dataset is empty"),
    ],
)
@pytest.mark.parametrize("kind", ["npz", "hdf5"])
def test_bad_columns_are_named(tmp_path: Path, kind: str, columns: Columns, words: str) -> None:
    path = tmp_path / f"bad.{kind}"
    (write_npz if kind == "npz" else write_hdf5)(path, columns)
    with pytest.raises(DataError, match=words) as caught:
        load(DatasetLocation(kind, path))
    assert str(path) in str(caught.value) and "\n" not in str(caught.value)


def test_object_arrays_are_refused_without_decoding(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[Any, ...]:
            return (os.mkdir, (str(tmp_path / "exploded"),))

    columns: dict[str, Any] = episodes([4], [True])
    columns["actions"] = np.array([Bomb() for _ in range(4)], dtype=object)
    path = write_npz(tmp_path / "bomb.npz", columns)
    with pytest.raises(DataError, match="actions must hold numbers, but holds Python objects"):
        load(DatasetLocation("npz", path))
    assert not (tmp_path / "exploded").exists()


@pytest.mark.parametrize("kind", ["hdf5", "npz", "parquet"])
def test_damaged_foreign_and_missing_files(tmp_path: Path, kind: str) -> None:
    good = DatasetLocation(kind, tmp_path / f"good.{kind}")
    write_location(as_log(episodes([500, 500], [True, False])), good)
    assert good.path is not None
    data = good.path.read_bytes()
    cut, foreign = tmp_path / f"cut.{kind}", tmp_path / f"foreign.{kind}"
    cut.write_bytes(data[: len(data) // 2])
    foreign.write_text("this is a letter, not a dataset\n" * 50)
    for path in (cut, foreign):
        with pytest.raises(DataError, match=f"{path.name}: cannot be read as") as caught:
            load(DatasetLocation(kind, path))
        assert "\n" not in str(caught.value)
    with pytest.raises(DataError, match="no such file"):
        load(DatasetLocation(kind, tmp_path / f"absent.{kind}"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(DataError, match="holds no table" if kind == "parquet" else "is a directory"):
        load(DatasetLocation(kind, empty))


def test_damaged_bytes_inside_an_npz(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "log.npz", episodes([400], [True]))
    data = bytearray(path.read_bytes())
    data[3000] ^= 0xFF
    path.write_bytes(bytes(data))
    with pytest.raises(DataError, match="cannot be read as NPZ"):
        load(DatasetLocation("npz", path))


def test_a_minari_id_that_is_not_installed_lists_what_is(tmp_path: Path) -> None:
    write_location(as_log(episodes([3], [True])), DatasetLocation("minari", tmp_path, "toy/here-v1"))
    with pytest.raises(DataError, match=r"got 'toy/there-v0'; installed: toy/here-v1 \(download"):
        load(DatasetLocation("minari", tmp_path, "toy/there-v0"))
    data_file = tmp_path / "toy/here-v1/data/main_data.hdf5"
    with pytest.raises(DataError, match="use dataset_kind minari"):
        load(DatasetLocation("hdf5", data_file))


def test_unknown_kinds_and_missing_places() -> None:
    with pytest.raises(
        ConfigError, match=r"dataset_kind must be one of table, csv, .* got 'ndz' \(did you mean 'npz'"
    ):
        load_transition_dataset("ndz")
    with pytest.raises(DataError, match="dataset_path is required by dataset_kind 'npz'"):
        load_transition_dataset("npz")
    with pytest.raises(DataError, match="dataset_id is required by dataset_kind 'minari'"):
        load_transition_dataset("minari")


def test_the_cache_is_keyed_by_content_and_built_once(tmp_path: Path, own_cache: Path) -> None:
    place = DatasetLocation("npz", tmp_path / "log.npz")
    write_location(as_log(episodes([5, 5], [True, False])), place)
    first = load(place, in_memory=False)
    entries = sorted(path.name for path in own_cache.iterdir() if path.name != "stamps")
    stamp = (own_cache / entries[0] / "obs.npy").stat().st_mtime_ns
    copy = tmp_path / "copy.npz"
    copy.write_bytes((tmp_path / "log.npz").read_bytes())
    again = load(DatasetLocation("npz", copy), in_memory=False)
    assert_same(first, again)
    assert sorted(path.name for path in own_cache.iterdir() if path.name != "stamps") == entries
    assert (own_cache / entries[0] / "obs.npy").stat().st_mtime_ns == stamp
    assert again.info.source == str(copy)
    write_location(as_log(episodes([5, 6], [True, False])), place)
    assert len(load(place, in_memory=False)) == 11
    assert len(list(own_cache.glob("*/obs.npy"))) == 2
    assert not list(own_cache.rglob("*.tmp"))


def zeros_in_the_middle(entry: Path) -> None:
    """As a disk loses a page: no size, no time and no header tells."""
    file = entry / "obs.npy"
    size, times = file.stat().st_size, (file.stat().st_atime_ns, file.stat().st_mtime_ns)
    with file.open("r+b") as stream:
        stream.seek(size // 2)
        stream.write(bytes(4096))
    os.utime(file, ns=times)
    assert file.stat().st_size == size


DAMAGE: dict[str, tuple[Callable[[Path], object], str]] = {
    "zeros": (zeros_in_the_middle, "obs.npy is damaged after byte 0"),
    "truncated": (lambda entry: os.truncate(entry / "obs.npy", 8192), "obs.npy does not have its "),
    "gone": (lambda entry: (entry / "actions.npy").unlink(), "actions.npy does not have its "),
    "facts": (lambda entry: (entry / "facts.json").write_bytes(bytes(300)), "facts.json is damaged"),
    "other facts": (
        lambda entry: (entry / "facts.json").write_text((entry / "facts.json").read_text().replace("1", "2")),
        "facts.json is damaged",
    ),
    "no facts": (lambda entry: (entry / "facts.json").unlink(), "facts.json is damaged"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_cache_is_built_anew_and_that_is_said(tmp_path: Path, own_cache: Path, damage: str) -> None:
    place = DatasetLocation("npz", tmp_path / "log.npz")
    write_location(as_log(episodes([900, 900], [True, False])), place)
    load(place, in_memory=False)
    (entry,) = (path for path in own_cache.iterdir() if path.name != "stamps")
    spoil, words = DAMAGE[damage]
    spoil(entry)
    with pytest.warns(DataWarning, match=f"{words}.*; the data cache is built anew"):
        again = load(place, in_memory=False)
    assert_same(load(place), again)
    assert_same(load(place), load(place, in_memory=False))  # and now it is whole: nothing is said
    assert sorted(path.name for path in own_cache.iterdir()) == sorted([entry.name, "stamps"])


def test_a_damaged_note_of_a_source_is_taken_again(tmp_path: Path, own_cache: Path) -> None:
    place = DatasetLocation("npz", tmp_path / "log.npz")
    write_location(as_log(episodes([5, 5], [True, False])), place)
    load(place, in_memory=False)
    (note,) = (own_cache / "stamps").iterdir()
    for text in (b"", bytes(50), b"[]", b'{"size": 1}'):
        note.write_bytes(text)
        assert_same(load(place), load(place, in_memory=False))


def test_checksums_are_taken_once_in_a_process(
    tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = DatasetLocation("npz", tmp_path / "log.npz")
    write_location(as_log(episodes([50, 50], [True, False])), place)
    load(place, in_memory=False)
    taken: list[int] = []
    crc = zlib.crc32
    monkeypatch.setattr(zlib, "crc32", lambda block: taken.append(len(block)) or crc(block))
    load(place, in_memory=False)
    once = len(taken)
    assert sum(taken) == sum(file.stat().st_size for file in own_cache.glob("*/*.npy"))
    load(place, in_memory=False)
    assert len(taken) == once


def test_what_was_uncertain_is_said_again_by_the_cache(tmp_path: Path) -> None:
    columns = episodes([5, 5], [True, True], successors=False)
    write_npz(tmp_path / "log.npz", {name: values for name, values in columns.items() if name != "timeouts"})
    place = DatasetLocation("npz", tmp_path / "log.npz")
    for _ in range(2):
        with pytest.warns(DataWarning, match="an episode that was cut runs into the next one"):
            load(place, in_memory=False)


def test_data_on_disk_is_mapped_and_not_held(tmp_path: Path) -> None:
    """Read-only maps: private writable ones count as memory and fail for files larger than it."""
    place = DatasetLocation("npz", tmp_path / "log.npz")
    write_location(as_log(episodes([5, 5], [True, False], optional=True)), place)
    log = cached_log("npz", place.source({}))
    for column in (log.obs, log.actions, log.next_obs, log.further["next_actions"]):
        assert isinstance(column, np.memmap) and not column.flags.writeable
    dataset = TransitionDataset.from_log(log)
    assert dataset.store.columns["obs"].data_ptr() == log.obs.ctypes.data
    assert dataset.to("cpu").store.columns["obs"].data_ptr() == log.obs.ctypes.data


@pytest.mark.slow
def test_a_full_disk_leaves_no_cache_entry(tmp_path: Path, own_cache: Path) -> None:
    """Files may grow to 100 kB only, which a disk without space looks like to the writer."""
    place = DatasetLocation("npz", tmp_path / "log.npz")
    write_location(as_log(episodes([20_000], [True])), place)
    program = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "from rl_training.data import load_transition_dataset\n"
        f"load_transition_dataset('npz', dataset_path={str(place.path)!r}, in_memory=False)\n"
    )
    done = run_python(program, own_cache)
    assert done.returncode == 1 and "cannot write the data cache" in done.stderr.splitlines()[-1]
    assert [path.name for path in own_cache.iterdir()] == ["stamps"]


def test_loading_warns_nothing_about_clean_files(tmp_path: Path) -> None:
    log = as_log(episodes(LENGTHS, TERMINATED))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place in places(tmp_path):
            write_location(log, place)
            assert read_location(place).notes == ()
