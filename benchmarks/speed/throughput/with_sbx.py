"""Worker side of sbx (Stable-Baselines3 in JAX)."""

from __future__ import annotations

from typing import Any

import numpy as np
import sbx
from batches import COUNT, make_batches
from protocol import Meter, Spec
from stable_baselines3.common.logger import Logger
from with_sb3 import Shapes, keywords, learn, to_samples


def model_class(spec: Spec) -> Any:
    return {"sac": sbx.SAC, "tqc": sbx.TQC, "td3": sbx.TD3}[spec.algo]


def updates(spec: Spec) -> None:
    """All batches in one compiled call, the fastest way that its interface offers."""
    model = model_class(spec)("MlpPolicy", Shapes(), batch_size=spec.batch, buffer_size=1, **keywords(spec))
    model.set_logger(Logger(None, []))
    parts = make_batches(spec)
    joined = to_samples(spec, {name: np.concatenate([part[name] for part in parts]) for name in parts[0]})
    model.replay_buffer.sample = lambda *_, **__: joined
    Meter(unit=COUNT).repeat(lambda: model.train(COUNT, spec.batch))


def environment_steps(spec: Spec) -> None:
    learn(spec, model_class(spec), **keywords(spec))


KINDS = {"update": updates, "steps": environment_steps}
