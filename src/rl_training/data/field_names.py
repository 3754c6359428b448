"""The names under which logs keep their fields, and the ones used here."""

from __future__ import annotations

from collections.abc import Iterable

from rl_training.core.errors import DataError

FIELD_NAMES: dict[str, tuple[str, ...]] = {
    "obs": ("obs", "observations", "observation", "states", "state"),
    "actions": ("actions", "action"),
    "rewards": ("rewards", "reward"),
    "next_obs": ("next_obs", "next_observations", "next_observation", "next_states", "next_state"),
    "terminated": ("terminals", "terminations", "terminated", "terminal", "termination"),
    "truncated": ("timeouts", "truncations", "truncated", "timeout", "truncation"),
    "dones": ("dones", "done"),
    "episode_ends": ("episode_terminals", "episode_ends"),
    "episode_ids": ("episode_ids", "episode_id", "episodes", "episode", "trajectory_ids", "trajectory_id"),
    "next_actions": ("next_actions", "next_action"),
    "returns_to_go": ("returns_to_go", "mc_returns"),
}
"""Field -> accepted names; the first one that a log has is taken."""

VECTOR_FIELDS = ("obs", "next_obs", "actions", "next_actions")
NUMBER_FIELDS = ("rewards", "returns_to_go")
FLAG_FIELDS = ("terminated", "truncated", "dones", "episode_ends")

INFO_KEYS = (
    "env_id",
    "obs_dim",
    "action_low",
    "action_high",
    "reference_min_return",
    "reference_max_return",
    "reference_source",
)
"""What files written here store beside their columns; see `DataInfo`."""


def resolve_names(names: Iterable[str], source: str) -> dict[str, str]:
    """Field -> the name it has in this log; a log without the necessary fields is refused."""
    present = list(names)
    found = {
        field: next(name for name in accepted if name in present)
        for field, accepted in FIELD_NAMES.items()
        if any(name in present for name in accepted)
    }
    missing = [field for field in ("obs", "actions", "rewards") if field not in found]
    if "terminated" not in found and "dones" not in found:
        missing.append("terminated")
    if missing:
        wanted = ", ".join(f"{FIELD_NAMES[field][1]!r}" for field in missing)
        has = ", ".join(sorted(present)) or "nothing"
        raise DataError(f"{source}: missing key {wanted}; it has {has}")
    return found


def unused_names(names: Iterable[str], found: dict[str, str]) -> list[str]:
    """Keys of a log that are not part of a transition and are left out."""
    return sorted(set(names) - set(found.values()) - set(INFO_KEYS))
