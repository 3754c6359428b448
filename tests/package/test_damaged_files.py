"""Random damage to files of every format ends in one line, or in data; links lead nowhere else."""

import json
import random
import warnings
from pathlib import Path

import numpy as np
import pytest

import format_samples as samples
from rl_training.core.errors import DataError, UserError
from rl_training.data import load_transition_dataset
from rl_training.data.convert import DatasetLocation, write_location
from rl_training.data.disk import CACHE_VARIABLE
from toy_logs import as_log, episodes

pytest.importorskip("pyarrow")
ATTEMPTS = 12
MAPPING = {"observations": ["x"], "actions": ["u"], "reward": "r", "episode": "e"}


def make(kind: str, root: Path) -> tuple[Path, dict[str, object]]:
    """A good dataset: the file that will be damaged, and how the dataset is loaded."""
    log = as_log(episodes([30, 20, 40], [True, False, False]))
    path = root / f"log.{kind}"
    if kind in ("hdf5", "npz", "parquet", "feather", "csv"):
        write_location(log, DatasetLocation(kind, path))
    elif kind == "minari":
        write_location(log, DatasetLocation("minari", root, "toy/log-v0"))
        path = root / "toy/log-v0/data/main_data.hdf5"
        return path, {"dataset_path": root, "dataset_id": "toy/log-v0"}
    elif kind == "robomimic":
        path = root / "demos.hdf5"
        samples.write_robomimic(path)
    elif kind == "lerobot":
        samples.write_lerobot(root / "set", "v2.1", recorded=True)
        return root / "set/data/chunk-000/episode_000001.parquet", {"dataset_path": root / "set"}
    elif kind == "jsonl":
        rows = [{"x": [row, 0.5], "u": row, "r": 1.0, "e": row // 5} for row in range(30)]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path, {"dataset_path": path, "columns": MAPPING}
    else:
        path = root / "arrays.npz"
        arrays = samples.ogbench_columns(single_task=True) if kind == "ogbench" else samples.rlds_steps()
        np.savez(path, **arrays)  # type: ignore[arg-type]
    return path, {"dataset_path": path}


KINDS = (
    "hdf5",
    "npz",
    "parquet",
    "feather",
    "csv",
    "jsonl",
    "minari",
    "robomimic",
    "lerobot",
    "ogbench",
    "rlds",
)


@pytest.mark.parametrize("kind", KINDS)
def test_damage_ends_in_one_line(tmp_path: Path, kind: str) -> None:
    path, how = make(kind, tmp_path)
    good, rng = path.read_bytes(), random.Random(0)
    refused = 0
    for attempt in range(ATTEMPTS):
        damaged = bytearray(good[: rng.randrange(len(good))] if attempt % 4 == 0 else good)
        for _ in range(rng.choice([1, 3, 20])):
            if damaged:
                damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        path.write_bytes(bytes(damaged))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                load_transition_dataset(**how)  # type: ignore[arg-type]
            except UserError as problem:
                assert "\n" not in str(problem)
                refused += 1
    assert refused


LINKS = {  # folder that is loaded -> what is replaced by a link that leads out of it
    "lerobot file": ("lerobot", "set/data/chunk-000/episode_000001.parquet"),
    "lerobot folder": ("lerobot", "set/data"),
    "lerobot info": ("lerobot", "set/meta/info.json"),
    "minari file": ("minari", "toy/log-v0/data/main_data.hdf5"),
    "minari facts": ("minari", "toy/log-v0/data/metadata.json"),
    "minari folder": ("minari", "toy/log-v0/data"),
    "table": ("csv", "log.csv"),
}


@pytest.mark.parametrize("in_memory", [True, False])
@pytest.mark.parametrize("case", LINKS)
def test_a_link_out_of_a_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: str, in_memory: bool
) -> None:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    kind, replaced = LINKS[case]
    (root := tmp_path / "given").mkdir()
    _, how = make(kind, root)
    if kind == "csv":
        how = {"dataset_path": root}
    load_transition_dataset(**how, in_memory=in_memory)  # type: ignore[arg-type]
    (root / replaced).rename(tmp_path / "elsewhere")
    (root / replaced).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(DataError, match=f"{root / replaced}: is a link that leads out of {root}.* refused"):
        load_transition_dataset(**how, in_memory=in_memory)  # type: ignore[arg-type]


def test_links_that_are_given_or_that_stay_inside_are_followed(tmp_path: Path) -> None:
    (folder := tmp_path / "logs").mkdir()
    file, _ = make("csv", folder)
    rows = len(load_transition_dataset(dataset_path=file))
    (root := tmp_path / "given").mkdir()
    (root / "one.csv").symlink_to(file)
    (root / "all").symlink_to(folder)
    for given in (root / "one.csv", root / "all", root / "all" / "*.csv"):
        assert len(load_transition_dataset(dataset_path=given)) == rows
    file.rename(folder / "real")
    file.symlink_to("real")
    assert len(load_transition_dataset(dataset_path=folder)) == rows
    for pattern in ("*.csv", "**/*.csv", "al?/*.csv"):
        with pytest.raises(DataError, match="is a link that leads out of"):
            load_transition_dataset(dataset_path=root / pattern)
