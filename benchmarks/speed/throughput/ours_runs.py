"""Worker side of this package: whole runs through the public training functions."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from ours import LEARNER_KEYWORDS, MODEL_KEYWORDS, updates
from protocol import ACTION_DIM, OBS_DIM, Meter, Spec

from rl_training.data.offline_dataset import TransitionDataset
from rl_training.experiment.config import TrainConfig
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.runtime.callbacks import Callback

ENDLESS = 10**9
ROWS = 100_000


class StepMeter(Callback):
    """Tells the meter about every step of a run."""

    def __init__(self, meter: Meter) -> None:
        self.meter = meter

    def on_step_end(self, run: Any) -> None:
        self.meter.add()


def make_config(spec: Spec, **changes: Any) -> TrainConfig:
    keywords = {**MODEL_KEYWORDS.get(spec.algo, {}), **LEARNER_KEYWORDS.get(spec.algo, {})}
    return TrainConfig.build(
        {
            "algo": spec.algo,
            "total_timesteps": ENDLESS,
            "eval_episodes": 0,
            "checkpoint_interval": 0,
            "device": "cpu",
            "algo_kwargs": {
                "hidden_sizes": list(spec.widths),
                "batch_size": spec.batch,
                "compile": spec.candidate.startswith("compiled"),
                **keywords,
                **changes.pop("algo_kwargs", {}),
            },
            **changes,
        }
    )


def offline_run(spec: Spec) -> None:
    """`compiled` is bare updates, `compiled-run` the same updates inside of a run (sampling, logging)."""
    if not spec.candidate.endswith("-run"):
        updates(spec)
        return
    torch.set_num_threads(spec.threads)
    rng = np.random.default_rng(0)
    dataset = TransitionDataset(
        obs=rng.standard_normal((ROWS, OBS_DIM)).astype(np.float32),
        actions=rng.uniform(-0.95, 0.95, (ROWS, ACTION_DIM)).astype(np.float32),
        rewards=rng.standard_normal(ROWS).astype(np.float32),
        next_obs=rng.standard_normal((ROWS, OBS_DIM)).astype(np.float32),
        dones=(rng.random(ROWS) < 0.01).astype(np.float32),
    )
    bounds = {"action_low": [-1.0] * ACTION_DIM, "action_high": [1.0] * ACTION_DIM}
    train = get_algorithm_spec(spec.algo).train_fn
    callbacks = [StepMeter(Meter(unit=2))]
    train(make_config(spec, algo_kwargs=bounds), dataset=dataset, callbacks=callbacks, quiet=True)


def online_run(spec: Spec) -> None:
    """One environment, one update per step."""
    torch.set_num_threads(spec.threads)
    config = make_config(
        spec, env_id=spec.env_id, algo_kwargs={"learning_starts": 300, "buffer_capacity": 100_000}
    )
    meter = Meter(warm_up=300 + 20)
    get_algorithm_spec(spec.algo).train_fn(config, callbacks=[StepMeter(meter)], quiet=True)
