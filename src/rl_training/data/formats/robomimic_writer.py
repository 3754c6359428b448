"""Logs as robomimic HDF5: a group per episode, `dones` where the task ended."""

from __future__ import annotations

import json
from pathlib import Path

import h5py

from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array, episode_lengths, episode_starts
from rl_training.data.writing import refuse_loss

OWN_KEY = "rl_training"
"""Attribute under which names and bounds are kept, and that `dones` are terminations."""

OBSERVATION = "state"


def write_robomimic(log: EpisodeLog, path: Path) -> None:
    """Every episode as a demonstration, with one observation vector."""
    refuse_loss(log, "robomimic")
    arrays: dict[str, Array] = {"actions": log.actions, "dones": log.terminated.astype("int64")}
    arrays[f"obs/{OBSERVATION}"] = log.obs
    if log.info.rewards_known:
        arrays["rewards"] = log.rewards
    if log.next_obs is not None:
        arrays[f"next_obs/{OBSERVATION}"] = log.next_obs
    with h5py.File(path, "w") as file:
        group = file.create_group("data")
        episodes = zip(episode_starts(log.ends), episode_lengths(log.ends), strict=True)
        for index, (start, length) in enumerate(episodes):
            demo = group.create_group(f"demo_{index}")
            for name, values in arrays.items():
                demo[name] = values[start : start + length]
            demo.attrs["num_samples"] = int(length)
        group.attrs["total"] = len(log)
        group.attrs["env_args"] = json.dumps({"env_name": log.info.env_id or "", "type": 2, "env_kwargs": {}})
        group.attrs[OWN_KEY] = json.dumps(log.info.to_dict())
