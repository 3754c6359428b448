"""Formats of other projects: rewards, terminations and time-outs as their own readers give them."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from format_samples import ogbench_columns, rlds_steps, write_lerobot, write_robomimic
from rl_training.config.data import DatasetSource, OfflineDataFields
from rl_training.core.errors import ConfigError, DataError
from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.data.formats import FORMATS, Format, recognised_format, register_format
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import DataWarning, Target
from toy_logs import run_python

pa = pytest.importorskip("pyarrow")


def load(path: Path, **fields: Any) -> TransitionDataset:
    return load_transition_dataset(dataset_path=path, **fields)


def flags(data: TransitionDataset) -> tuple[list[float], list[float]]:
    assert data.truncations is not None
    return data.dones.tolist(), data.truncations.tolist()


# OGBench


def reference_ogbench(file: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The rows of `ogbench.utils.load_dataset(compact_dataset=False)`, which leaves out last rows."""
    keep = file["terminals"] == 0
    return {
        "obs": file["observations"][keep],
        "next_obs": file["observations"][np.append(False, keep[:-1])],
        "actions": file["actions"][keep],
        "rewards": file["rewards"][keep],
        "dones": (file["masks"] == 0)[keep].astype(np.float32),
    }


def test_ogbench_terminals_are_ends_and_masks_are_terminations(tmp_path: Path) -> None:
    columns = ogbench_columns(single_task=True)
    path = tmp_path / "cube-singletask-v0.npz"
    np.savez(path, **columns)  # type: ignore[arg-type]
    assert recognised_format(path) == "ogbench"
    data, wanted = load(path), reference_ogbench(columns)
    alive = wanted["dones"] == 0  # the successor of a terminated row does not matter
    for name, values in wanted.items():
        found = data.store.whole(name).numpy()
        rows = alive if name == "next_obs" else slice(None)
        np.testing.assert_array_equal(found[rows], values[rows], name)
    assert flags(data) == ([0, 1, 0, 0, 0], [0, 0, 1, 0, 1])
    with pytest.warns(DataWarning, match="neither time-outs"):  # what a generic reader makes of it
        assert load(path, kind="npz").dones.sum() == 2


def test_ogbench_without_rewards_is_for_imitation(tmp_path: Path) -> None:
    np.savez(tmp_path / "cube-v0.npz", **ogbench_columns(single_task=False))  # type: ignore[arg-type]
    data = load(tmp_path / "cube-v0.npz")
    assert not data.info.rewards_known and len(data) == 5 and data.dones.sum() == 0


# robomimic


def test_robomimic_demonstrations(tmp_path: Path) -> None:
    path = tmp_path / "low_dim.hdf5"
    write_robomimic(path)
    assert recognised_format(path) == "robomimic"
    with pytest.warns(DataWarning) as notes:
        data = load(path)
    assert ["time-outs" in str(note.message) for note in notes].count(True) == 1
    assert any("image" in str(note.message) for note in notes)
    assert data.info.observation_names == ("grip", "pos_0", "pos_1")
    assert data.obs[:, 1:].tolist() == [[0, 0], [0, 1], [1, 0], [2, 0], [2, 1], [2, 2]]
    assert flags(data) == ([0] * 6, [0, 1, 1, 0, 0, 1])
    assert data.episode_returns().tolist() == [3, 1, 6]


def test_robomimic_dones_mean_what_the_config_says(tmp_path: Path) -> None:
    path = tmp_path / "low_dim.hdf5"
    write_robomimic(path, with_next=True)
    columns = {"observations": ["pos"], "terminated": "dones"}
    data = load(path, columns=columns)
    assert flags(data) == ([0, 0, 1, 0, 1, 0, 0, 0, 1], [0] * 9)
    assert data.next_obs[:3].tolist() == [[0, 1], [0, 2], [0, 3]]
    with pytest.raises(
        DataError, match=r"has no vector 'image' in obs \(columns.observations\); it has grip, pos"
    ):
        load(path, columns={"observations": ["image"]})
    write_robomimic(path, with_rewards=False)
    assert not load(path, columns=columns).info.rewards_known


# LeRobot


@pytest.mark.parametrize("version", ["v2.1", "v3.0"])
def test_lerobot_demonstrations_and_recorded_ends(tmp_path: Path, version: str) -> None:
    write_lerobot(tmp_path / "demos", version, recorded=False)
    assert recognised_format(tmp_path / "demos") == "lerobot"
    data = load(tmp_path / "demos")
    assert data.obs.tolist() == [[0, 0], [0, 1], [1, 0]] and data.actions.tolist() == [[0], [1], [0]]
    assert not data.info.rewards_known and flags(data) == ([0, 0, 0], [0, 1, 1])
    assert data.info.observation_names == ("pan", "tilt") and data.info.action_names == ("push",)
    write_lerobot(tmp_path / "rl", version, recorded=True)
    data = load(tmp_path / "rl", columns={"observations": ["observation.state", "observation.effort"]})
    assert data.rewards.tolist() == [1, 2, 3, 4] and data.episode_returns().tolist() == [6, 9]
    assert flags(data) == ([0, 0, 1, 0], [0, 0, 0, 1])  # the second episode was cut, not finished
    assert data.obs.shape == (4, 3)


def test_lerobot_mistakes(tmp_path: Path) -> None:
    write_lerobot(tmp_path / "demos", "v2.1", recorded=False)
    with pytest.raises(DataError, match=r"can name: observation.state, observation.effort"):
        load(tmp_path / "demos", columns={"observations": ["observation.joints"]})
    (tmp_path / "demos/data/chunk-000/episode_000001.parquet").unlink()
    with pytest.raises(DataError, match="promises 5 frames, but its files hold 3"):
        load(tmp_path / "demos")
    info = tmp_path / "demos/meta/info.json"
    info.write_text(info.read_text().replace('"shape": [2]', '"shape": [9000000]'))
    with pytest.raises(DataError, match=r"features.observation.state the shape \[9000000\]; 1 to 16384"):
        load(tmp_path / "demos")
    info.write_text("{")
    with pytest.raises(DataError, match=r"info.json cannot be read"):
        load(tmp_path / "demos", kind="lerobot")


# RLDS


@pytest.mark.parametrize("ending", ["npz", "parquet"])
def test_rlds_steps(tmp_path: Path, ending: str) -> None:
    import pyarrow.parquet as parquet

    path = tmp_path / f"steps.{ending}"
    steps = rlds_steps()
    if ending == "npz":
        np.savez(path, **steps)  # type: ignore[arg-type]
    else:
        lists = {name: pa.array(list(values)) for name, values in steps.items()}
        parquet.write_table(pa.table(lists), path)
    assert recognised_format(path) == "rlds"
    data = load(path)
    assert data.obs.tolist() == [[0], [1], [10]] and data.next_obs.tolist() == [[1], [2], [11]]
    assert data.rewards.tolist() == [1, 2, 3]
    assert flags(data) == ([0, 1, 0], [0, 0, 1])


def test_neorl2(tmp_path: Path) -> None:
    obs = np.arange(10, dtype=np.float32).reshape(5, 2)
    columns = {"obs": obs, "next_obs": obs + 2, "action": np.zeros((5, 1)), "reward": np.ones((5, 1))}
    columns |= {"done": np.array([[0], [0], [1], [0], [1]]), "truncated": np.array([[0], [0], [0], [0], [1]])}
    np.savez(tmp_path / "a.npz", **columns, index=np.array([0, 3]))  # type: ignore[arg-type]
    assert recognised_format(tmp_path / "a.npz") == "neorl2"
    assert flags(load(tmp_path / "a.npz")) == ([0, 0, 1, 0, 0], [0, 0, 0, 0, 1])


@pytest.mark.parametrize(
    "kind", ["lerobot", "robomimic", "ogbench", "rlds", "neorl2", "table", "feather", "minari"]
)
def test_foreign_bytes_end_in_one_line(tmp_path: Path, kind: str) -> None:
    for name in ("x.hdf5", "x.npz", "x.parquet", "x.csv", "x.feather", "x.jsonl"):
        path = tmp_path / name
        path.write_bytes(bytes(range(256)) * 9)
        with pytest.raises(DataError) as caught:
            load_transition_dataset(kind, dataset_path=path, dataset_id="x" if kind == "minari" else None)
        assert "\n" not in str(caught.value)


# HDF5 from strangers


def hdf5_with(path: Path, spoil: Any) -> Path:
    with h5py.File(path, "w") as file:
        for name, width in (("observations", 2), ("actions", 1)):
            file[name] = np.zeros((4, width))
        for name in ("rewards", "terminals", "timeouts"):
            file[name] = np.zeros(4)
        spoil(file)
    return path


def test_hdf5_links_out_of_the_file_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret.bin").write_bytes(b"\0" * 64)
    hdf5_with(tmp_path / "other.h5", lambda file: None)

    def external_link(file: Any) -> None:
        file["extra"] = h5py.ExternalLink("other.h5", "/rewards")

    def dangling(file: Any) -> None:
        file["extra"] = h5py.SoftLink("/nowhere")

    def external_storage(file: Any) -> None:
        file.create_dataset("extra", (4,), np.float64, external=[(str(tmp_path / "secret.bin"), 0, 32)])

    def virtual(file: Any) -> None:
        layout = h5py.VirtualLayout((4,), np.float64)
        layout[:] = h5py.VirtualSource(str(tmp_path / "other.h5"), "rewards", (4,))
        file.create_virtual_dataset("extra", layout)

    for spoil in (external_link, dangling, external_storage, virtual):
        path = hdf5_with(tmp_path / f"{spoil.__name__}.h5", spoil)
        with pytest.raises(DataError, match=r"extra .*(link|another file)"):
            load(path)

    def soft(file: Any) -> None:
        file["next_observations"] = h5py.SoftLink("/observations")

    assert len(load(hdf5_with(tmp_path / "soft.h5", soft))) == 4


def test_an_array_that_claims_more_than_it_holds_is_refused(tmp_path: Path) -> None:
    def claim(file: Any) -> None:
        del file["observations"]
        file.create_dataset("observations", (10**9, 100), np.float64, chunks=(1024, 100))

    with pytest.raises(DataError, match="observations claims 800000000000 bytes but stores 0"):
        load(hdf5_with(tmp_path / "bomb.h5", claim))


def test_an_array_in_countless_missing_pieces_is_refused(tmp_path: Path) -> None:
    """It is small enough to be believed, but its pieces are looked for one by one."""

    def claim(file: Any) -> None:
        del file["actions"]
        file.create_dataset("actions", (9_699_334, 1), np.float32, chunks=(6, 1))

    with pytest.raises(DataError, match="actions claims to lie in 1616556 pieces but stores 0 bytes"):
        load(hdf5_with(tmp_path / "pieces.h5", claim))


def test_a_minari_id_cannot_leave_its_root(tmp_path: Path) -> None:
    for name in ("../outside", "/etc", "a/../../b"):
        with pytest.raises(DataError, match="dataset_id must be a name such as"):
            load_transition_dataset("minari", dataset_path=tmp_path, dataset_id=name)


# Formats of others


def read_lines(source: DatasetSource, target: Target) -> EpisodeLog:
    rows = [
        [float(x) for x in line.split()] for line in Path(str(source.dataset_path)).read_text().splitlines()
    ]
    table = np.array(rows, dtype=np.float32)
    columns = {
        "obs": table[:, :1],
        "actions": table[:, 1:2],
        "rewards": table[:, 2],
        "terminated": table[:, 3],
    }
    ends = np.zeros(len(table), dtype=bool)
    return EpisodeLog.build(columns | {"episode_ends": ends}, info=DataInfo(str(source.dataset_path)))


def test_a_registered_format_is_a_dataset_kind(tmp_path: Path) -> None:
    lines = Format(read=read_lines, suffixes=(".mylog",), recognise=lambda path: path.suffix == ".mylog")
    register_format("mylog", lines)
    register_format("mylog", lines)  # the same again is fine
    with pytest.raises(ConfigError, match="dataset_kind 'mylog' exists already"):
        register_format("mylog", Format(read=read_lines))
    with pytest.raises(ConfigError, match="dataset_kind 'npz' exists already"):
        register_format("npz", lines)
    with pytest.raises(DataError, match="register_format needs a Format, got str"):
        register_format("other", "no format")  # type: ignore[arg-type]
    (tmp_path / "a.mylog").write_text("1 2 3 0\n4 5 6 1\n")
    for kind in ("mylog", "auto"):
        data = load_transition_dataset(kind, dataset_path=tmp_path / "a.mylog")
        assert data.rewards.tolist() == [3, 6] and data.dones.tolist() == [0, 1]
    assert "mylog" in FORMATS.names()
    assert OfflineDataFields(dataset_kind="mylog", dataset_path="x").dataset_kind == "mylog"


PLUGIN = """
import numpy as np
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.formats import Format

def read(source, target):
    rows = np.loadtxt(source.dataset_path, dtype=np.float32, ndmin=2)
    columns = {"obs": rows[:, :1], "actions": rows[:, 1:2], "rewards": rows[:, 2], "terminated": rows[:, 3]}
    columns["episode_ends"] = np.zeros(len(rows), bool)
    return EpisodeLog.build(columns, info=DataInfo(source.dataset_path))

RIG = Format(read=read, suffixes=(".rig",), recognise=lambda path: path.suffix == ".rig")
"""


@pytest.mark.slow
def test_an_installed_package_brings_a_format(tmp_path: Path) -> None:
    """A new process finds it through its entry point: nobody imports or registers anything."""
    (tmp_path / "rig_logs.py").write_text(PLUGIN)
    about = tmp_path / "rig_logs-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: rig-logs\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[rl_training.formats]\nrig = rig_logs:RIG\n")
    (tmp_path / "a.rig").write_text("1 2 3 0\n4 5 6 1\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "from rl_training.cli import main\n"
        "from rl_training.config.data import OfflineDataFields\n"
        "OfflineDataFields(dataset_kind='rig', dataset_path='a.rig')\n"
        "sys.exit(main(['data', 'inspect', 'a.rig', '--no-plot', '--json']))\n"
    )
    done = run_python(program, tmp_path / "cache", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["transitions"] == 2


def test_dataset_kind_is_checked_and_recognised() -> None:
    with pytest.raises(
        ConfigError, match=r"dataset_kind must be one of .* got 'lerobto' \(did you mean 'lerobot'\?\)"
    ):
        OfflineDataFields(dataset_kind="lerobto", dataset_path="x")
    assert OfflineDataFields().dataset_kind == "random"
    assert OfflineDataFields(dataset_path="x").dataset_kind == "auto"
    assert OfflineDataFields(dataset_id="a/b-v0").dataset_kind == "auto"
    with pytest.raises(ConfigError, match="dataset_path is not used by dataset_kind 'random': leave it out"):
        OfflineDataFields(dataset_kind="random", dataset_path="x")
    with pytest.raises(ConfigError, match="required by dataset_kind 'auto'"):
        OfflineDataFields(dataset_kind="auto")
