"""Seeds trained together equal seeds trained alone; a seed that stops does not hold up the others."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from helpers import slow_but_two, tiny_config, train
from rl_training.core.checkpoints import list_checkpoints, load_checkpoint
from rl_training.core.errors import ConfigError, RunFailed
from rl_training.core.registry import algorithm_names
from rl_training.runs.resume import resume_training
from rl_training.runtime.callbacks import Callback, Run, TrainResult


def weights(result: TrainResult) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = load_checkpoint(result.checkpoint_path or "")["learner"]["tensors"]
    return tensors


def assert_close(left: TrainResult, right: TrainResult) -> None:
    pairs = weights(left), weights(right)
    for name, values in pairs[0].items():
        # Rounding grows from update to update, most where second derivatives are taken (EDAC).
        scale = max(1.0, float(pairs[1][name].abs().max()))
        torch.testing.assert_close(values, pairs[1][name], rtol=1e-3, atol=2e-4 * scale, msg=name)


@pytest.mark.parametrize("algo", slow_but_two(algorithm_names()))
def test_a_seed_of_a_stack_equals_the_seed_alone_and_resumes_alone(algo: str, tmp_path: Path) -> None:
    together = train(tiny_config(algo, tmp_path / "stack", seeds=[3, 7], total_timesteps=34))
    assert [member.run_dir.name[-2:] for member in together.members] == ["s3", "s7"]
    longer = train(tiny_config(algo, tmp_path / "longer", seed=7, total_timesteps=37, checkpoint_interval=34))
    assert_close(together.members[1], replace(longer, checkpoint_path=list_checkpoints(longer.run_dir)[0]))
    resumed = resume_training(together.members[1].run_dir, total_timesteps=37, quiet=True)
    assert_close(resumed, longer)
    mean = sum(member.metrics["eval_return_mean"] for member in together.members) / 2
    assert together.metrics["eval_return_mean"] == pytest.approx(mean)


class StopSeed(Callback):
    def __init__(self, seed: int, step: int) -> None:
        self.seed, self.step = seed, step

    def on_step_end(self, run: Run) -> None:
        if run.config.seed == self.seed and run.global_step >= self.step:
            run.request_stop("this seed has had enough")


@pytest.mark.parametrize("seeds", [[1, 2], [1, 2, 3]])
def test_a_seed_that_stops_is_frozen_while_the_others_go_on(seeds: list[int], tmp_path: Path) -> None:
    config = tiny_config("sac", tmp_path / "stack", seeds=seeds, num_envs=2, total_timesteps=60)
    together = train(config, callbacks=[StopSeed(1, 40)])
    steps = [member.metrics["global_step"] for member in together.members]
    assert steps == [40] + [60] * (len(seeds) - 1)
    assert together.members[0].metrics["stop_reason"] == "this seed has had enough"
    changes: dict[str, Any] = {"num_envs": 2, "total_timesteps": 60}
    for index, seed in enumerate(seeds):
        alone = train(
            tiny_config("sac", tmp_path / str(seed), seed=seed, **changes), callbacks=[StopSeed(1, 40)]
        )
        assert_close(together.members[index], alone)


def test_a_seed_that_diverges_does_not_take_the_others_with_it(tmp_path: Path) -> None:
    class Diverge(Callback):
        def on_step_end(self, run: Run) -> None:
            if run.config.seed == 5 and run.global_step == 30:
                raise RunFailed("step 30: critic_loss became nan")

    with pytest.raises(RunFailed, match="seed 5: step 30: critic_loss became nan"):
        train(tiny_config("sac", tmp_path, seeds=[4, 5]), callbacks=[Diverge()])
    assert (tmp_path / "sac-Pendulum-v1-s4" / "checkpoints" / "step_40.safetensors").is_file()
    assert not list((tmp_path / "sac-Pendulum-v1-s5" / "checkpoints").iterdir())


def test_seeds_must_differ(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"seeds must be different seeds, at least one, got \[1, 1\]"):
        tiny_config("sac", tmp_path, seeds=[1, 1])
