"""Write a Minari dataset that Minari itself and every reader of it can open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import DataError
from rl_training.core.spaces import Spaces
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array, broken_successions, episode_lengths
from rl_training.data.formats.minari import INFO_PREFIX, OWN_KEY, import_minari


def write_minari(log: EpisodeLog, dataset_id: str, folder: Path) -> None:
    """Write the data directory of `dataset_id` into `folder`.

    Minari wants one observation more than steps. The last row of a timed-out episode without a recorded
    successor is therefore no step there: its action and reward go to the `infos` of its observation, so that
    no false transition is written and reading it back loses nothing.
    """
    minari = import_minari()
    from minari.dataset.minari_storage import MinariStorage

    spaces = log.info.spaces
    if spaces is None:
        raise DataError(
            f"{log.info.source}: a Minari dataset states its action bounds, which this data does not carry; "
            "give --action-low and --action-high (or --env-id)"
        )
    _check_episodes(log)
    observation_space, action_space = _gym_spaces(spaces, log)
    storage = MinariStorage.new(
        folder.resolve(),  # Minari looks for its files in the wrong place when the path is relative
        observation_space=observation_space,
        action_space=action_space,
        env_spec=_env_spec(log.info.env_id),
        jpeg_encoding=False,
    )
    episodes = _episodes(log)
    storage.update_metadata(_metadata(log, dataset_id, minari.__version__, episodes))
    storage.update_episodes(minari.data_collector.EpisodeBuffer(**episode) for episode in episodes)


def _check_episodes(log: EpisodeLog) -> None:
    if log.next_obs is None:
        return
    broken = broken_successions(log.obs, log.next_obs)
    torn = broken[~log.ends[broken]]
    if len(torn):
        raise DataError(
            f"{log.info.source}: row {int(torn[0])} is not followed by its next observation, so its episodes "
            "cannot be written for Minari; choose hdf5, npz or parquet"
        )


def _episodes(log: EpisodeLog) -> list[dict[str, Any]]:
    stops = np.flatnonzero(log.ends) + 1
    ranges = zip(stops - episode_lengths(log.ends), stops, strict=True)
    found = [_episode(log, slice(int(start), int(stop))) for start, stop in ranges]
    return [episode for episode in found if len(episode["rewards"])]


def _episode(log: EpisodeLog, rows: slice) -> dict[str, Any]:
    obs, last = log.obs[rows], rows.stop - 1
    unfinished = log.next_obs is None and not log.terminated[last]
    steps = slice(rows.start, last) if unfinished else rows
    if log.next_obs is not None:
        obs = np.concatenate([obs, log.next_obs[last : last + 1]])
    elif not unfinished:
        obs = np.concatenate([obs, obs[-1:]])  # stands in for a successor that a terminal row does not need
    truncated = log.truncated[steps].copy()
    truncated[-1:] |= unfinished
    return {
        "observations": obs,
        "actions": _matrix(log.actions[steps]),
        "rewards": log.rewards[steps],
        "terminations": log.terminated[steps],
        "truncations": truncated,
        "infos": _infos(log, rows, unfinished) or None,
    }


def _infos(log: EpisodeLog, rows: slice, unfinished: bool) -> dict[str, Array]:
    """One entry per observation. Fields beyond Minari's own, and the row without a successor."""
    infos = {}
    for name, values in (("next_actions", log.next_actions), ("returns_to_go", log.returns_to_go)):
        if values is not None:
            infos[name] = values[rows] if unfinished else np.concatenate([values[rows], values[rows][-1:]])
    if log.next_obs is None:
        observations = rows.stop - rows.start + (not unfinished)
        infos["unfinished"] = np.zeros(observations, dtype=bool)
        infos["unfinished"][-1] = unfinished
        actions = _matrix(log.actions[rows])
        infos["action"] = actions if unfinished else np.concatenate([actions, actions[-1:]])
        rewards = log.rewards[rows]
        infos["reward"] = rewards if unfinished else np.append(rewards, rewards[-1:])
    return {INFO_PREFIX + name: values for name, values in infos.items()}


def _metadata(
    log: EpisodeLog, dataset_id: str, version: str, episodes: list[dict[str, Any]]
) -> dict[str, Any]:
    own: dict[str, Any] = {"env_id": log.info.env_id}
    if log.next_obs is None:
        unfinished = (episode["infos"][INFO_PREFIX + "unfinished"][-1] for episode in episodes)
        own["successors"] = "next_row"
        own["rows"] = sum(len(episode["rewards"]) for episode in episodes) + int(sum(unfinished))
    metadata: dict[str, Any] = {"dataset_id": dataset_id, "minari_version": version, OWN_KEY: own}
    if log.info.reference is not None:
        own["reference_source"] = log.info.reference.source
        metadata["ref_min_score"] = log.info.reference.minimum
        metadata["ref_max_score"] = log.info.reference.maximum
    return metadata


def _gym_spaces(spaces: Spaces, log: EpisodeLog) -> tuple[Any, Any]:
    from gymnasium.spaces import Box

    low, high = (np.array(bound, dtype=np.float64) for bound in (spaces.action_low, spaces.action_high))
    width = log.obs.shape[1] if log.obs.ndim > 1 else 1
    observation = Box(-np.inf, np.inf, (width,), dtype=log.obs.dtype.type)
    return observation, Box(
        low.astype(log.actions.dtype), high.astype(log.actions.dtype), dtype=log.actions.dtype.type
    )


def _env_spec(env_id: str | None) -> Any:
    """Gymnasium's description of the environment, where it is registered here."""
    import gymnasium

    return None if env_id is None else gymnasium.registry.get(env_id)


def _matrix(actions: Array) -> Array:
    return actions if actions.ndim > 1 else actions[:, None]
