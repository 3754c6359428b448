"""Worker side of d3rlpy."""

from __future__ import annotations

from typing import Any

import d3rlpy
import torch
from batches import Arrays, endless
from d3rlpy.models import VectorEncoderFactory
from d3rlpy.torch_utility import TorchMiniBatch
from protocol import ACTION_DIM, CHOICES, OBS_DIM, Meter, Spec

CONFIGS: dict[str, tuple[str, dict[str, Any]]] = {
    "bc": ("BCConfig", {"policy_type": "deterministic"}),
    "td3": ("TD3Config", {"update_actor_interval": 2}),
    "td3_bc": ("TD3PlusBCConfig", {"update_actor_interval": 2}),
    "rebrac": ("ReBRACConfig", {"update_actor_interval": 2}),
    "awac": ("AWACConfig", {"lam": 1.0, "n_action_samples": 1}),
    "crr": ("CRRConfig", {"n_critics": 2, "target_update_type": "soft"}),
    "iql": ("IQLConfig", {}),
    "cql": ("CQLConfig", {"alpha_learning_rate": 0.0, "soft_q_backup": True}),
    "cal_ql": ("CalQLConfig", {"alpha_learning_rate": 0.0, "soft_q_backup": True}),
    "sac": ("SACConfig", {}),
    "dqn": ("DoubleDQNConfig", {}),
    "discrete_cql": ("DiscreteCQLConfig", {}),
}
ENCODERS = ("encoder_factory", "actor_encoder_factory", "critic_encoder_factory", "value_encoder_factory")


def make_algo(spec: Spec) -> Any:
    name, keywords = CONFIGS[spec.algo]
    config_class = getattr(d3rlpy.algos, name)
    encoder = VectorEncoderFactory(hidden_units=list(spec.widths))
    fields = config_class.__dataclass_fields__
    encoders = {field: encoder for field in ENCODERS if field in fields}
    if spec.algo == "rebrac":
        normed = VectorEncoderFactory(hidden_units=list(spec.widths), use_layer_norm=True)
        encoders["critic_encoder_factory"] = normed
    return config_class(batch_size=spec.batch, **encoders, **keywords).create(device="cpu:0")


def to_batch(spec: Spec, batch: Arrays) -> TorchMiniBatch:
    """What `update` makes of its numpy batch before it does anything else."""
    tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
    columns = {name: tensors[name].unsqueeze(-1) for name in ("rewards", "dones", "returns_to_go")}
    return TorchMiniBatch(
        observations=tensors["obs"],
        actions=tensors["levels"].unsqueeze(-1) if spec.algo in CHOICES else tensors["actions"],
        rewards=columns["rewards"],
        next_observations=tensors["next_obs"],
        next_actions=tensors["next_actions"],
        returns_to_go=columns["returns_to_go"],
        terminals=columns["dones"],
        intervals=torch.ones_like(columns["rewards"]),
        device="cpu:0",
    )


def updates(spec: Spec) -> None:
    torch.set_num_threads(spec.threads)
    algo = make_algo(spec)
    algo.create_impl((OBS_DIM,), ACTION_DIM)
    batches = endless(spec, lambda batch: to_batch(spec, batch))
    unit = CONFIGS[spec.algo][1].get("update_actor_interval", 1)
    steps = 0

    def update() -> None:
        nonlocal steps
        for _ in range(unit):
            algo.impl.update(next(batches), steps)
            steps += 1

    Meter(unit=unit).repeat(update)


def environment_steps(spec: Spec) -> None:
    import gymnasium
    from d3rlpy.dataset import create_fifo_replay_buffer
    from d3rlpy.logging import NoopAdapterFactory

    torch.set_num_threads(spec.threads)
    env = gymnasium.make(spec.env_id)
    meter = Meter(warm_up=300 + 20)
    make_algo(spec).fit_online(
        env,
        buffer=create_fifo_replay_buffer(limit=100_000, env=env),
        n_steps=10**9,
        n_steps_per_epoch=10**9,
        update_start_step=300,
        random_steps=300,
        logger_adapter=NoopAdapterFactory(),
        show_progress=False,
        callback=lambda algo, epoch, step: meter.add(),
    )


KINDS = {"update": updates, "steps": environment_steps}
