"""Facts about the data of a run that travel with it: into checkpoints, summaries and policy files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from rl_training.core.plain import State
from rl_training.core.transforms import RewardTransform
from rl_training.data.offline_dataset import TransitionDataset


def describe_parts(parts: Sequence[TransitionDataset], transform: RewardTransform) -> State:
    """Facts about the recorded data, as plain numbers and texts."""
    summary: State = {
        "source": " + ".join(part.info.source for part in parts),
        "transitions": sum(len(part) for part in parts),
        "terminations": int(sum(float(part.dones.sum()) for part in parts)),
        "reward_transform": transform.to_dict(),
    }
    features = next((part.info.features for part in parts if part.info.features), None)
    if features is not None:
        summary["features"] = features.to_dict()
    if all(part.ordered and len(part) for part in parts):
        returns = np.concatenate([part.episode_returns() for part in parts])
        summary["episodes"] = len(returns)
        if not all(part.info.rewards_known for part in parts):  # zeros stand in for them
            return summary
        summary |= {
            "return_mean": float(returns.mean()),
            "return_min": float(returns.min()),
            "return_max": float(returns.max()),
        }
    return summary
