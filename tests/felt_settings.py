"""How each setting is felt: a value other than the default, and what must be set beside it to feel it.

`LEARNER` holds the settings of learners and models, felt in three updates on fixed batches. `RUN` holds those
of the run, its data and its collection, felt in a run of the recording algorithm. A new setting needs a line.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

DIFFERS, REFUSED, ALLOWED, SOUGHT = "differs", "refused", "allowed", "sought"
"""Felt in what comes out, as an error that names the setting, as the end of such an error,
or as an error that says what was looked for."""


@dataclass(frozen=True)
class Felt:
    """`values` are tried in turn, the first that is not the default is taken; `given` holds for both sides.

    Where the default itself makes no run, `given` names another value to start from.
    """

    values: tuple[Any, ...]
    given: dict[str, Any] = field(default_factory=dict)
    how: str = DIFFERS
    says: str = ""
    """Words of the error, where it does not name the setting"""


def to(*values: Any, how: str = DIFFERS, says: str = "", **given: Any) -> Felt:
    return Felt(values, given, how, says)


def bounds(low: float, high: float) -> dict[str, Any]:
    """Action bounds of data without an environment."""
    return {"env_id": None, "action_low": [low], "action_high": [high]}


NETWORKS = {
    "hidden_sizes": to([8]),
    "network": to("residual"),
    "network_options": to({"expansion": 2}, network="residual"),
    "activation": to("tanh"),
    "layer_norm": to(True),
    "init": to("orthogonal_small"),
}
LEARNER: dict[str, Felt] = {
    **NETWORKS,
    **{
        f"{part}_{name}": felt
        for part in ("actor", "critic")
        for name, felt in NETWORKS.items()
        if name != "network_options"
    },
    # all learners
    "learning_rate": to(0.02),
    "actor_learning_rate": to(0.02),
    "critic_learning_rate": to(0.02),
    "gamma": to(0.5),
    "tau": to(0.5),
    # SAC and its kin
    "alpha": to(0.1),
    "target_entropy": to(3.0),
    "temperature_loss": to("exp"),
    "actor_reduce": to("mean", "min"),
    "policy_delay": to(1, 2),
    "num_critics": to(3),
    "log_std_multiplier": to(0.5),
    "log_std_offset": to(0.5, log_std_multiplier=1.0),
    "num_quantiles": to(7),
    "top_quantiles_to_drop_per_net": to(1),
    "kappa": to(0.1),
    "subset_size": to(1),
    # TD3+BC
    "policy_noise": to(0.8),
    "noise_clip": to(0.01),
    "exploration_noise": to(0.5),
    "actor_bc_coef": to(1.0),
    "critic_bc_coef": to(1.0),
    "normalize_q": to(False),
    # EDAC, FQL
    "eta": to(0.0),
    "flow_steps": to(3),
    "normalize_q_loss": to(True),
    "q_agg": to("min"),
    # weighted imitation
    "policy": to("squashed"),
    "max_q_value": to(-1.0),
    "temperature": to(2.0),
    "weighting": to("softmax"),
    "max_advantage": to(-1.0),
    "max_advantage_weight": to(0.01),
    "baseline": to("mean_action"),
    "update_order": to("together"),
    "actor_weight_decay": to(0.1),
    "n_action_samples": to(3),
    "advantage_type": to("max"),
    "weight_type": to("binary"),
    "beta": to(0.5),
    "max_weight": to(0.01),
    "target_update": to("soft"),
    "target_update_interval": to(2),
    "act_with_target": to(False),
    "critic_weighted": to(True),
    "expectile": to(0.9),
    "actor_dropout": to(0.5),
    # CQL, Cal-QL
    "cql_alpha": to(1.0),
    "cql_alpha_online": to(0.0),
    "num_cql_samples": to(4),
    "action_sources": to(["current"]),
    "importance_weights": to(False),
    "cql_temperature": to(2.0),
    "clip_diff_min": to(50.0),
    "clip_diff_max": to(-50.0),
    "lagrange": to(True),
    "target_gap": to(5.0, lagrange=True),
    "lagrange_form": to("weighted", lagrange=True),
    "backup_entropy": to(True),
    "max_target_backup": to(True),
    "max_target_order": to("min_max", max_target_backup=True, num_critics=6, critic_init="orthogonal"),
    "bc_steps": to(3),
}
OF_ONE: dict[tuple[str, str], Felt] = {
    **{
        ("bc", f"critic_{name}"): Felt(felt.values, felt.given, REFUSED)
        for name, felt in {**NETWORKS, "learning_rate": to(0.02)}.items()
    },
    **{
        ("redq", name): Felt(LEARNER[name].values, {"policy_delay": 1})
        for name in ("actor_learning_rate", "target_entropy", "temperature_loss")
    },
    ("redq", "actor_reduce"): to("min", policy_delay=1),
    ("bc", "policy"): to("gaussian"),
    ("crr", "tau"): to(0.5, target_update="soft"),
}
"""Where a setting is felt otherwise in one algorithm."""

ONLINE_PHASES = {"cql_alpha_online"}
"""Settings of a learner that are felt once it has been told that an online phase begins."""

OF_THE_DATA = {("bc", "gamma")}
"""Settings of a learner that only its data feel: see `gamma` in `RUN`."""

EVALUATED: dict[str, Any] = {"eval_interval": 2, "eval_episodes": 1}
LINEAR: dict[str, Any] = {"learning_rate_schedule": "linear"}
FILE: dict[str, Any] = {"dataset_kind": "npz", "dataset_path": "returns.npz"}
ROLLED_OUT: dict[str, Any] = {"dataset_kind": "checkpoint", "dataset_checkpoint": "some_run"}
REFERENCE: dict[str, Any] = {"eval_episodes": 1, "reference_min_return": 0.0, "reference_max_return": 10.0}
BY_ID: dict[str, Any] = {"env_id": "toy_envs:Count-v0", "dataset_size": 8, "eval_episodes": 2}
PARTS = [{"dataset_kind": "random", "dataset_seed": seed, "dataset_size": 8} for seed in (0, 1)]

COLUMNS = {"observations": ["x", "y", "z"], "actions": ["a"], "reward": "r", "episode": "e", "time": "t"}
TABLE: dict[str, Any] = {
    "dataset_kind": "table",
    "dataset_path": "log.csv",
    "dataset_size": None,
    "columns": COLUMNS,
}
LATIN = {
    **TABLE,
    "dataset_path": "latin.csv",
    "csv_encoding": "cp437",
    "columns": {**COLUMNS, "observations": ["größe", "y", "z"]},
}

CONTROL: dict[str, Felt] = {
    "batch_size": to(5),
    "eval_interval": to(3, eval_episodes=1),
    "max_updates": to(4),
    "early_stopping": to({"patience": 1, "min_delta": 1.0}, **EVALUATED),
    "learning_rate_schedule": to("linear"),
    "warmup_steps": to(3),
    "schedule_steps": to(20, **LINEAR),
    "schedule_groups": to("actor", **LINEAR),
    "keep_checkpoints": to(1, checkpoint_interval=2),
    "save_best": to(False, **EVALUATED),
    "compile": to(True),
    "eval_deterministic": to(False, **EVALUATED),
    "eval_seed": to(9, **EVALUATED),
    "gamma": to(0.5, **FILE),
    "reward_scale": to(2.0),
    "reward_shift": to(1.0),
    "reward_clip": to(0.5),
}
RUN_CONFIG: dict[str, Felt] = {
    "seed": to(4),
    "seeds": to([3, 4]),
    "total_timesteps": to(7),
    "output_dir": to("elsewhere"),
    "device": to("cuda:99", how=REFUSED),
    "eval_episodes": to(2),
    "log_interval": to(3),
    "checkpoint_interval": to(4),
    "tags": to(["mine"]),
    "trackers": to(["mlflow"], how=REFUSED),
    "algo_kwargs": to({"batch_size": 5}),
}
COLLECTION: dict[str, Felt] = {
    "buffer_capacity": to(3),
    "train_frequency": to(2),
    "gradient_updates_per_step": to(2),
    "async_envs": to(True),
}
ONLINE_PHASE: dict[str, Any] = {"online_timesteps": 6, "eval_episodes": 0}
OFFLINE: dict[str, Felt] = {
    **{name: Felt(felt.values, ONLINE_PHASE) for name, felt in COLLECTION.items()},
    "online_timesteps": to(4),
    "offline_share": to(0.25, **ONLINE_PHASE),
    "offline_data": to("append", **ONLINE_PHASE),
    "warmup_steps_online": to(3, **ONLINE_PHASE),
    "batch_size_online": to(5, **ONLINE_PHASE),
    "exploration_noise": to(0.5, **ONLINE_PHASE, exploration_noise=0.1),  # by a deterministic policy alone
    **CONTROL,
    **RUN_CONFIG,
    "algo": to("fake_online"),
    "env_id": to("toy_envs:Walk-v0", **BY_ID),
    "env_kwargs": to({"truncate_at": 2}, **BY_ID),
    "wrappers": to(["fake_world:impatient"], eval_episodes=1),
    "max_epochs": to(1),
    "dataset_kind": to("npz", dataset_path="returns.npz", dataset_size=None),
    "dataset_path": to("other.npz", **FILE),
    "dataset_id": to("made/up-v1", how=SOUGHT, dataset_kind="minari", dataset_path="."),
    "dataset_size": to(8),
    "dataset_seed": to(1),
    "dataset_checkpoint": to("other_run", **ROLLED_OUT),
    "dataset_noise": to(0.1, **ROLLED_OUT),
    "dataset_random_share": to(0.5, **ROLLED_OUT),
    "dataset_parts": to(
        [{**PARTS[0], "dataset_seed": 2}, PARTS[1]],
        dataset_kind="mix",
        dataset_size=None,
        dataset_parts=PARTS,
    ),
    "dataset_in_memory": to(False, **FILE),
    "normalize_reward": to(True),
    "returns_to_go": to("given", **FILE),
    "failure_reward": to(5.0, **FILE),
    "top_fraction": to(0.5),
    "n_step": to(2),
    "normalize_observations": to(True),
    "action_clip": to(0.1),
    "out_of_bounds": to("clip", how=ALLOWED, **FILE, **bounds(-0.5, 0.5)),
    "action_low": to([-3.0], **FILE, **bounds(-1.0, 1.0)),
    "action_high": to([3.0], **FILE, **bounds(-1.0, 1.0)),
    "columns": to({**COLUMNS, "reward": "q"}, **TABLE),
    "missing_values": to("drop", **{**TABLE, "dataset_path": "holes.csv", "missing_values": "hold"}),
    "files_end_episodes": to(True, **{**TABLE, "dataset_path": "folder"}),
    "max_gap": to(2.0, **TABLE),
    "discount_by_time": to(True, **TABLE),
    "csv_separator": to(";", how=REFUSED, says="no column 'x'", **TABLE),
    "csv_decimal": to(",", how=REFUSED, says="cannot be read as CSV", **TABLE),
    "csv_encoding": to("cp1252", how=ALLOWED, says="no column 'größe'", **LATIN),
    "validation_share": to(0.4, **FILE),
    "action_bounds": to("data", how=ALLOWED, says="action bounds", **FILE, env_id=None),
    "reference_min_return": to(-5.0, **REFERENCE),
    "reference_max_return": to(5.0, **REFERENCE),
}
ONLINE: dict[str, Felt] = {
    **CONTROL,
    **RUN_CONFIG,
    "num_envs": to(2),
    "max_epochs": to(1, how=REFUSED),
    **COLLECTION,
    "learning_starts": to(3),
    "offline_share": to(0.25, dataset_kind="random", dataset_size=12),
    "dataset_kind": to("random", dataset_size=12),
}
"""Further settings of data beside the collected rows are those of offline data, prepared alike."""
del ONLINE["gamma"]  # the learner's alone

STOPPING: dict[str, Felt] = {
    "metric": to("eval_length_mean", patience=1),
    "patience": to(1, min_delta=1.0),
    "min_delta": to(1.0, patience=1),
    "mode": to("min", patience=1),
    "target": to(1.0),
}
"""Settings of `early_stopping`, in a run whose evaluations get better slowly."""

PART: dict[str, Felt] = {
    "weight": to(3.0, others={"weight": 1.0}),
    "rows": to(3, others={"rows": 6}),
}
"""Settings of one of the `dataset_parts`."""

RUN_SETTINGS = {"offline": OFFLINE, "online": ONLINE}
