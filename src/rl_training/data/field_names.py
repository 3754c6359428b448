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
    "durations": ("durations",),
    "behavior_logprobs": ("behavior_logprobs", "behavior_logprob"),
}
"""Field -> accepted names; the first one that a log has is taken."""

VECTOR_FIELDS = ("obs", "next_obs", "actions", "next_actions")
NUMBER_FIELDS = ("rewards", "returns_to_go", "durations", "behavior_logprobs")
FLAG_FIELDS = ("terminated", "truncated", "dones", "episode_ends")

WRITTEN_NAMES = {
    "obs": "observations",
    "actions": "actions",
    "rewards": "rewards",
    "next_obs": "next_observations",
    "terminated": "terminals",
    "truncated": "timeouts",
    "next_actions": "next_actions",
    "returns_to_go": "returns_to_go",
    "durations": "durations",
    "behavior_logprobs": "behavior_logprobs",
}
"""The name under which a field is written, in the layout of D4RL."""

INFO_KEYS = (
    "env_id",
    "obs_dim",
    "action_low",
    "action_high",
    "reference_min_return",
    "reference_max_return",
    "reference_source",
    "observation_names",
    "action_names",
    "units",
    "rewards_known",
)
"""What files written here store beside their columns; see `DataInfo`."""


def resolve_names(names: Iterable[str], source: str, *, optional: Iterable[str] = ()) -> dict[str, str]:
    """Field -> the name it has in this log; without a necessary one it is refused, but for `optional`."""
    present = list(names)
    found = {
        field: next(name for name in accepted if name in present)
        for field, accepted in FIELD_NAMES.items()
        if any(name in present for name in accepted)
    }
    missing = [field for field in ("obs", "actions", "rewards", "terminated") if field not in found]
    if "dones" in found and "terminated" in missing:
        missing.remove("terminated")
    missing = [field for field in missing if field not in optional]
    if missing:
        wanted = ", ".join(f"{FIELD_NAMES[field][1]!r}" for field in missing)
        has = ", ".join(sorted(present)) or "nothing"
        raise DataError(f"{source}: missing key {wanted}; it has {has}")
    return found
