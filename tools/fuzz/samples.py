"""Good files to damage, made once: a run, its policies, and one dataset of every format."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

from rl_training.config.run import parse_config
from rl_training.core.checkpoints import newest_checkpoint
from rl_training.core.spaces import Spaces
from rl_training.data.convert import DatasetLocation, write_location
from rl_training.data.info import DataInfo, ReferenceReturns
from rl_training.data.log import EpisodeLog
from rl_training.runs.export import export_checkpoint
from rl_training.runs.train import train

MINARI_ID = "toy/log-v0"
WRITTEN = ("hdf5", "npz", "parquet", "feather", "csv")
FORMATS = (*WRITTEN, "jsonl", "minari", "robomimic", "lerobot", "ogbench", "rlds", "neorl2")
ROWS = 24
CONFIG: dict[str, Any] = {
    **{"algo": "td3_bc", "env_id": "Pendulum-v1", "seed": 1, "total_timesteps": 10, "eval_episodes": 1},
    "env_kwargs": {"max_episode_steps": 3},
    "algo_kwargs": {
        **{"batch_size": 8, "dataset_size": 40, "hidden_sizes": [8], "eval_interval": 5, "compile": False},
        "normalize_observations": True,
    },
}


class Samples:
    """Folders of good files below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.run = train(parse_config({**CONFIG, "output_dir": str(root / "runs")}), quiet=True).run_dir
        newest = newest_checkpoint(self.run)
        assert newest is not None
        self.checkpoint = newest
        self.policies = [root / "policy.safetensors", root / "policy.onnx"]
        for path in self.policies:
            export_checkpoint(self.run, path)
        for kind in FORMATS:
            (root / kind).mkdir()
            MAKE.get(kind, make_written)(root / kind, kind)

        self.observations = make_observations(root / "observations")

    def data(self, kind: str) -> dict[str, bytes]:
        """Name inside the folder -> content, of one dataset."""
        return files_below(self.root / kind)


def make_observations(folder: Path) -> list[Path]:
    """Files to predict for."""
    folder.mkdir()
    rows = np.linspace(-1, 1, 36, dtype=np.float32).reshape(12, 3)
    np.save(folder / "obs.npy", rows)
    np.savez(folder / "obs.npz", obs=rows)
    np.savetxt(folder / "obs.csv", rows, delimiter=",", header="x,y,z", comments="")
    parquet.write_table(pa.table({"obs": list(rows)}), folder / "obs.parquet")
    return sorted(folder.iterdir())


def files_below(folder: Path) -> dict[str, bytes]:
    found = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in found}


def toy_log() -> EpisodeLog:
    rng = np.random.default_rng(0)
    ends = np.arange(ROWS) % 6 == 5
    obs = rng.normal(size=(ROWS + 1, 3)).astype(np.float32)
    columns = {
        "observations": obs[:-1],
        "next_observations": obs[1:],
        "actions": rng.uniform(-1, 1, size=(ROWS, 1)).astype(np.float32),
        "rewards": rng.normal(size=ROWS).astype(np.float32),
        "terminals": ends & (np.arange(ROWS) < 12),
        "timeouts": ends & (np.arange(ROWS) >= 12),
    }
    info = DataInfo(
        "toy",
        Spaces(3, (-2.0,), (2.0,)),
        "Pendulum-v1",
        ReferenceReturns(-1.0, 1.0, "toy"),
        observation_names=("x", "y", "speed"),
        action_names=("torque",),
        units={"torque": "Nm"},
    )
    return EpisodeLog.from_arrays(columns, info=info)


def make_written(folder: Path, kind: str) -> None:
    write_location(toy_log(), DatasetLocation(kind, folder / f"log.{kind}"))


def make_minari(folder: Path, kind: str) -> None:
    write_location(toy_log(), DatasetLocation(kind, folder, MINARI_ID))


def make_jsonl(folder: Path, kind: str) -> None:
    rows = [
        {
            "obs": [row, 0.5],
            "action": [0.1 * row],
            "reward": 1.0,
            "episode": row // 5,
            "terminated": row % 5 == 4,
        }
        for row in range(ROWS)
    ]
    (folder / "log.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def make_robomimic(folder: Path, kind: str) -> None:
    with h5py.File(folder / "demos.hdf5", "w") as file:
        group = file.create_group("data")
        group.attrs["env_args"] = json.dumps({"env_name": "Lift", "type": 1})
        for index, length in enumerate((3, 2, 4)):
            demo = group.create_group(f"demo_{index}")
            demo["actions"] = np.full((length, 2), index, np.float64)
            demo["rewards"] = np.arange(length, dtype=np.float64)
            demo["dones"] = (np.arange(length) == length - 1).astype(np.int64)
            demo["obs/pos"] = np.ones((length, 2))
            demo["obs/image"] = np.zeros((length, 4, 4, 3), np.uint8)


def make_lerobot(folder: Path, kind: str) -> None:
    lengths = (3, 2)
    numbers = [(episode, step) for episode, length in enumerate(lengths) for step in range(length)]
    frames = pa.table(
        {
            "observation.state": [[float(episode), float(step)] for episode, step in numbers],
            "action": [[float(step)] for _, step in numbers],
            "timestamp": [step / 30 for _, step in numbers],
            "episode_index": [episode for episode, _ in numbers],
            "next.reward": [1.0] * 5,
            "next.done": [False, False, True, False, True],
        }
    )
    features = {
        "observation.state": {"dtype": "float32", "shape": [2], "names": [["pan", "tilt"]]},
        "action": {"dtype": "float32", "shape": [1], "names": {"motors": ["push"]}},
    }
    info = {"codebase_version": "v2.1", "fps": 30, "total_frames": 5, "features": features}
    info["data_path"] = "data/chunk-{episode_chunk:03d}/episode_{episode_index:06d}.parquet"
    for name in ("meta", "data/chunk-000"):
        (folder / name).mkdir(parents=True)
    (folder / "meta/info.json").write_text(json.dumps(info))
    parquet.write_table(frames.slice(0, 3), folder / "data/chunk-000/episode_000000.parquet")
    parquet.write_table(frames.slice(3), folder / "data/chunk-000/episode_000001.parquet")


def make_ogbench(folder: Path, kind: str) -> None:
    _savez(
        folder,
        observations=np.arange(14, dtype=np.float32).reshape(7, 2),
        actions=np.linspace(-1, 1, 7, dtype=np.float32)[:, None],
        terminals=np.array([0, 0, 0, 1, 0, 0, 1], np.float32),
        rewards=np.array([-1, 0, -1, -1, -1, -1, 0], np.float32),
        masks=np.array([1, 0, 1, 1, 1, 1, 0], np.float32),
    )


def make_rlds(folder: Path, kind: str) -> None:
    _savez(
        folder,
        observation=np.array([[0], [1], [2], [10], [11]], np.float32),
        action=np.array([[0.1], [0.2], [0], [0.3], [0]], np.float32),
        reward=np.array([1, 2, 0, 3, 0], np.float32),
        is_first=np.array([1, 0, 0, 1, 0], bool),
        is_last=np.array([0, 0, 1, 0, 1], bool),
        is_terminal=np.array([0, 0, 1, 0, 0], bool),
    )


def make_neorl2(folder: Path, kind: str) -> None:
    _savez(
        folder,
        obs=np.ones((6, 2), np.float32),
        next_obs=np.ones((6, 2), np.float32),
        action=np.linspace(-1, 1, 6, dtype=np.float32)[:, None],
        reward=np.ones((6, 1), np.float32),
        done=np.array([0, 0, 1, 0, 0, 1], np.float32)[:, None],
        truncated=np.array([0, 0, 0, 0, 0, 1], np.float32)[:, None],
        index=np.array([0, 3]),
    )


def _savez(folder: Path, **arrays: Any) -> None:
    np.savez(folder / "log.npz", **arrays)


MAKE = {
    "minari": make_minari,
    "jsonl": make_jsonl,
    "robomimic": make_robomimic,
    "lerobot": make_lerobot,
    "ogbench": make_ogbench,
    "rlds": make_rlds,
    "neorl2": make_neorl2,
}
