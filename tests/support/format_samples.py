"""Small files of other libraries' formats, written as those libraries write them."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

pa = pytest.importorskip("pyarrow")


def ogbench_columns(*, single_task: bool) -> dict[str, np.ndarray]:
    """Two trajectories of 4 and 3 rows; the goal is reached in row 1 and in the very last one."""
    terminals = np.array([0, 0, 0, 1, 0, 0, 1], dtype=np.float32)
    columns = {
        "observations": np.arange(14, dtype=np.float32).reshape(7, 2),
        "actions": np.linspace(-1, 1, 7, dtype=np.float32)[:, None],
        "terminals": terminals,
        "qpos": np.zeros((7, 3), np.float32),
    }
    if single_task:
        reached = np.array([0, 1, 0, 0, 0, 0, 1], dtype=np.float32)
        columns |= {"rewards": reached - 1, "masks": 1 - reached}
    return columns


def write_robomimic(path: Path, *, with_next: bool = False, with_rewards: bool = True) -> None:
    with h5py.File(path, "w") as file:
        group = file.create_group("data")
        group.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1})
        for index, length in enumerate((3, 2, 4)):
            demo = group.create_group(f"demo_{index * 5}")  # demo_10 comes after demo_5
            demo.attrs["num_samples"] = length
            demo["actions"] = np.full((length, 2), index, np.float64)
            if with_rewards:
                demo["rewards"] = np.arange(length, dtype=np.float64)
            demo["dones"] = (np.arange(length) == length - 1).astype(np.int64)
            demo["states"] = np.zeros((length, 9))
            demo["obs/pos"] = np.stack([np.full(length, index), np.arange(length)], axis=1).astype(np.float64)
            demo["obs/grip"] = np.full((length, 1), 7.0)
            demo["obs/image"] = np.zeros((length, 4, 4, 3), np.uint8)
            if with_next:
                demo["next_obs/pos"] = demo["obs/pos"][()] + [0, 1]
                demo["next_obs/grip"] = demo["obs/grip"][()]
        file["mask/train"] = np.array([b"demo_0"])


def write_lerobot(root: Path, version: str, *, recorded: bool) -> None:
    import pyarrow.parquet as parquet

    lengths = (3, 2)
    frames: dict[str, Any] = {
        "observation.state": [[float(e), float(t)] for e, n in enumerate(lengths) for t in range(n)],
        "observation.effort": [[9.0] for n in lengths for _ in range(n)],
        "action": [[float(t)] for n in lengths for t in range(n)],
        "timestamp": [t / 30 for n in lengths for t in range(n)],
        "frame_index": [t for n in lengths for t in range(n)],
        "episode_index": [e for e, n in enumerate(lengths) for _ in range(n)],
        "index": list(range(5)),
        "task_index": [0] * 5,
    }
    features: dict[str, Any] = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": [["pan", "tilt"]]},
        "observation.effort": {"dtype": "float32", "shape": [1], "names": None},
        "action": {"dtype": "float32", "shape": [1], "names": {"motors": ["push"]}},
        "observation.images.top": {"dtype": "video", "shape": [3, 8, 8], "names": None},
    }
    if recorded:
        frames |= {
            "next.reward": [1.0, 2.0, 3.0, 4.0, 5.0],
            "next.done": [False, False, True, False, True],
            "next.truncated": [False, False, False, False, True],
        }
    info = {"codebase_version": version, "fps": 30, "total_frames": 5, "features": features}
    (root / "meta").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    (root / "data/chunk-000").mkdir(parents=True)
    table = pa.table(frames)
    if version == "v3.0":
        parquet.write_table(table, root / "data/chunk-000/file-000.parquet")
        (root / "meta/episodes/chunk-000").mkdir(parents=True)
        parquet.write_table(
            pa.table({"episode_index": [0, 1]}), root / "meta/episodes/chunk-000/file-000.parquet"
        )
    else:
        parquet.write_table(table.slice(0, 3), root / "data/chunk-000/episode_000000.parquet")
        parquet.write_table(table.slice(3), root / "data/chunk-000/episode_000001.parquet")


def rlds_steps() -> dict[str, np.ndarray]:
    """A terminal episode of 3 steps and a cut one of 2; last steps hold only an observation."""
    return {
        "observation": np.array([[0], [1], [2], [10], [11]], np.float32),
        "action": np.array([[0.1], [0.2], [np.nan], [0.3], [np.nan]], np.float32),
        "reward": np.array([1, 2, np.nan, 3, np.nan], np.float32),
        "discount": np.array([1, 0, 0, 1, 1], np.float32),
        "is_first": np.array([1, 0, 0, 1, 0], bool),
        "is_last": np.array([0, 0, 1, 0, 1], bool),
        "is_terminal": np.array([0, 0, 1, 0, 0], bool),
    }
