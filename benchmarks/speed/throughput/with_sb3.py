"""Worker side of Stable-Baselines3 and sb3-contrib; sbx builds on the same classes."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch
from batches import Arrays, endless
from protocol import ACTION_DIM, CHOICES, OBS_DIM, Meter, Spec
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.type_aliases import ReplayBufferSamples

STEPS_PER_CALL = 10
"""Updates per `train` call: what it does once per call, such as logging, hardly counts."""


class Shapes(gymnasium.Env[Any, Any]):
    """An environment that is only asked for its spaces."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (OBS_DIM,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (ACTION_DIM,), np.float32)


class LevelShapes(Shapes):
    """The same with one choice."""

    action_space = gymnasium.spaces.Discrete(ACTION_DIM)


def model_class(spec: Spec) -> Any:
    if spec.algo == "tqc":
        import sb3_contrib

        return sb3_contrib.TQC
    import stable_baselines3

    known = {"sac": stable_baselines3.SAC, "td3": stable_baselines3.TD3, "dqn": stable_baselines3.DQN}
    return known[spec.algo]


def keywords(spec: Spec) -> dict[str, Any]:
    if spec.algo in CHOICES:
        return {"policy_kwargs": {"net_arch": list(spec.widths)}}
    policy = {"net_arch": list(spec.widths), "n_critics": 2}
    if spec.algo == "tqc":
        return {"policy_kwargs": {**policy, "n_quantiles": 25}, "top_quantiles_to_drop_per_net": 2}
    return {"policy_kwargs": policy}


def relu_keywords(spec: Spec) -> dict[str, Any]:
    chosen = keywords(spec)
    chosen["policy_kwargs"]["activation_fn"] = torch.nn.ReLU
    return chosen


def to_samples(spec: Spec, batch: Arrays) -> ReplayBufferSamples:
    tensors = {name: torch.from_numpy(values) for name, values in batch.items()}
    return ReplayBufferSamples(
        observations=tensors["obs"],
        actions=tensors["levels"].unsqueeze(-1) if spec.algo in CHOICES else tensors["actions"],
        next_observations=tensors["next_obs"],
        dones=tensors["dones"].unsqueeze(-1),
        rewards=tensors["rewards"].unsqueeze(-1),
    )


def updates(spec: Spec) -> None:
    torch.set_num_threads(spec.threads)
    shapes = LevelShapes() if spec.algo in CHOICES else Shapes()
    model = model_class(spec)(
        "MlpPolicy", shapes, batch_size=spec.batch, buffer_size=1, device="cpu", **relu_keywords(spec)
    )
    model.set_logger(Logger(None, []))
    batches = endless(spec, lambda batch: to_samples(spec, batch))
    model.replay_buffer.sample = lambda *_, **__: next(batches)
    Meter(unit=STEPS_PER_CALL).repeat(lambda: model.train(STEPS_PER_CALL, spec.batch))


class StepMeter(BaseCallback):
    """Tells the meter about every environment step."""

    def __init__(self, meter: Meter) -> None:
        super().__init__()
        self.meter = meter

    def _on_step(self) -> bool:
        self.meter.add()
        return True


def learn(spec: Spec, chosen_class: Any, **chosen: Any) -> None:
    torch.set_num_threads(spec.threads)
    model = chosen_class(
        "MlpPolicy",
        gymnasium.make(spec.env_id),
        batch_size=spec.batch,
        buffer_size=100_000,
        learning_starts=300,
        **chosen,
    )
    model.learn(10**9, callback=StepMeter(Meter(warm_up=300 + 20)))


def environment_steps(spec: Spec) -> None:
    learn(spec, model_class(spec), device="cpu", **relu_keywords(spec))


KINDS = {"update": updates, "steps": environment_steps}
