"""How the settings of runs are felt; those of the data are in `felt_data`."""

from __future__ import annotations

from typing import Any

from felt_data import BESIDE_DATA, BOUNDS, BY_ID, DATA, FILE
from felt_settings import REFUSED, Felt, to

EVALUATED: dict[str, Any] = {"eval_interval": 2, "eval_episodes": 1}
LINEAR: dict[str, Any] = {"learning_rate_schedule": "linear"}
GOES_ON: dict[str, Any] = {"total_timesteps": 4, "online_timesteps": 8}
"""A few updates on data, then steps in the environment."""

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
    "products": to("onednn"),
    "eval_deterministic": to(False, **EVALUATED),
    "eval_seed": to(9, **EVALUATED),
    "reward_scale": to(2.0),
    "reward_shift": to(1.0),
    "reward_clip": to(0.5),
    "penalty": to({"cost": 0.5}),
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
    "wrappers": to(["fake_world:impatient"], eval_episodes=1),
    "trackers": to(["mlflow"], how=REFUSED),
    "algo_kwargs": to({"batch_size": 5}),
    "env_id": to("Pendulum-v1", **BY_ID),
    "env_kwargs": to({"truncate_at": 2}, **BY_ID),
}
COLLECTION: dict[str, Felt] = {
    "num_envs": to(2),
    "buffer_capacity": to(3),
    "train_frequency": to(2),
    "gradient_updates_per_step": to(2),
    "async_envs": to(True),
    "collect_ahead": to(True),
}
FINE_TUNING: dict[str, Felt] = {
    **COLLECTION,
    "offline_share": to(1.0),
    "offline_data": to("drop"),
    "warmup_steps_online": to(3),
    "batch_size_online": to(7),
    "exploration_noise": to(0.5, algo="bc"),
}
"""Settings of the online phase that follows offline training."""

MANY: dict[str, Any] = {**FILE, "dataset_path": "many.npz"}
JUDGED: dict[str, Any] = {**MANY, **BOUNDS, "judge_at_end": True, "judge_updates": 2}
JUDGING: dict[str, Felt] = {
    "judge_at_end": to(True, **FILE, **BOUNDS, judge_updates=200),
    "judge_gamma": to(0.5, **JUDGED),
    "judge_rows": to(8, **JUDGED),
    "judge_updates": to(3, **JUDGED),
}
"""Settings of the judgement that ends a run without an environment."""

OFFLINE: dict[str, Felt] = {
    **CONTROL,
    **JUDGING,
    **RUN_CONFIG,
    **DATA,
    **{name: Felt(felt.values, {**GOES_ON, **felt.given}) for name, felt in FINE_TUNING.items()},
    "algo": to("fake_online"),
    "max_epochs": to(1),
    "online_timesteps": to(5),
}
ONLINE: dict[str, Felt] = {
    **CONTROL,
    **RUN_CONFIG,
    **COLLECTION,
    "max_epochs": to(1, how=REFUSED),
    "learning_starts": to(3),
    "online_timesteps": to(5, how=REFUSED),
}
BESIDE: dict[str, Felt] = {**ONLINE, **BESIDE_DATA, "offline_share": to(1.0)}
"""Settings of an online run that has logged data beside what it collects."""

STOPPING: dict[str, Felt] = {
    "metric": to("eval_length_mean", patience=1),
    "patience": to(1, min_delta=1.0),
    "min_delta": to(1.0, patience=1),
    "mode": to("min", patience=1),
    "target": to(1.0),
}
"""Settings of `early_stopping`, in a run whose evaluations get better slowly."""

RUN_SETTINGS = {"offline": OFFLINE, "online": ONLINE, "beside": BESIDE}
