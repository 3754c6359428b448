"""A checkpoint with a missing, wrong or impossible entry is refused in one line that names it."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import tiny_config, train
from rl_training.cli import main
from rl_training.core.checkpoints import load_checkpoint, save_checkpoint
from rl_training.core.errors import CheckpointError, UserError
from rl_training.runs.evaluate import predict_checkpoint
from rl_training.runs.resume import resume_training

OBS = np.zeros(3, dtype=np.float32)


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("run")
    config = tiny_config("td3_bc", folder, algo_kwargs={"normalize_observations": True})
    return load_checkpoint(train(config).run_dir)


def damaged(state: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    """A copy with one entry replaced, or taken out where the value is `...`."""
    changed = copy.deepcopy(state)
    *path, last = place.split("/")
    level: Any = changed
    for name in path:
        level = level[int(name) if isinstance(level, list) else name]
    if value is ...:
        del level[last]
    else:
        level[last] = value
    return changed


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        ("counters/global_step", "ten", "counters.global_step must be an integer, got 'ten'"),
        ("counters/global_step", -1, "counters.global_step must be >= 0, got -1"),
        ("counters/phase", ..., "counters.phase is required"),
        ("counters/extra", 1, "counters.extra is not a known key"),
        ("counters", [1], "counters must be a mapping, got [1]"),
        ("config", 3, "config must be a mapping, got 3"),
        ("in_python", {"env": 1}, "in_python must be a list of texts"),
        ("reference", {"minimum": 1}, "reference.maximum is required"),
        ("dataset", ..., "dataset is required"),
        ("algo_class", None, "algo_class must be text, got None"),
        ("policy", [1], "policy must be a mapping"),
        ("policy/spaces/action_low", [float("nan")], "action bounds must be finite"),
        ("policy/spaces/obs_dim", 4, "the policy's actor takes 3 observations"),
        ("policy/observation_steps/0/mean", torch.tensor([0.0, np.nan, 0.0]), "mean holds NaN or infinity"),
        ("policy/observation_steps/0/std", torch.tensor([-1.0, 1.0, 1.0]), "std and epsilon >= 0"),
        ("policy/observation_steps/0/std", torch.ones(2), "must be lists of one length"),
        ("policy/observation_steps/0/epsilon", float("inf"), "epsilon holds NaN or infinity"),
        ("policy/actor/obs_dim", 10**12, "must have shape"),
        ("policy/actor/network/hidden_sizes", [16384] * 64, "must have shape"),
        ("policy/actor/kind", "absent", "absent"),
        ("policy/tensors", 5, "the saved policy makes no sense"),
    ],
)
def test_predict_names_the_entry(
    good: dict[str, Any], tmp_path: Path, place: str, value: object, complaint: str
) -> None:
    path = tmp_path / "step_1.safetensors"
    save_checkpoint(path, damaged(good, place, value))
    with pytest.raises(CheckpointError) as caught:
        predict_checkpoint(path, OBS)
    message = str(caught.value)
    assert complaint in message and str(path) in message and "\n" not in message


def test_nan_in_the_weights_is_refused_by_predict(good: dict[str, Any], tmp_path: Path) -> None:
    name, weight = next(iter(good["policy"]["tensors"].items()))
    path = tmp_path / "step_1.safetensors"
    save_checkpoint(path, damaged(good, f"policy/tensors/{name}", torch.full_like(weight, np.nan)))
    with pytest.raises(CheckpointError, match=f"policy tensor {name} holds NaN or infinity"):
        predict_checkpoint(path, OBS)


@pytest.mark.parametrize(
    ("place", "value", "complaint"),
    [
        ("learner/tensors", {}, r"learner state: model\.actor\.\S+ must have shape \(3, 16\), found nothing"),
        ("streams", {}, r"parts do not fit together \(KeyError: 'batches'"),
        ("streams/batches", {"count": "x"}, r"parts do not fit together \(KeyError: 'block_states'"),
        ("dataset/reward_transform", "x", r"parts do not fit together \(TypeError: string indices"),
        ("callbacks/Checkpoints.0", {}, r"parts do not fit together \(KeyError: 'best'"),
    ],
)
def test_resume_refuses_parts_that_do_not_fit(
    good: dict[str, Any], tmp_path: Path, place: str, value: object, complaint: str
) -> None:
    path = tmp_path / "step_1.safetensors"
    save_checkpoint(path, damaged(good, place, value))
    with pytest.raises(UserError, match=complaint) as caught:
        resume_training(path, total_timesteps=45, output_dir=tmp_path / "runs", quiet=True)
    assert "\n" not in str(caught.value)


def test_the_undamaged_state_is_read(good: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "step_1.safetensors"
    save_checkpoint(path, good)
    assert predict_checkpoint(path, OBS).shape == (1,)
    longer = resume_training(path, total_timesteps=45, output_dir=tmp_path / "runs", quiet=True)
    assert longer.metrics["global_step"] == 45


def test_collecting_with_a_checkpoint_imports_nothing_that_it_names(
    good: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "step_1.safetensors"
    save_checkpoint(path, damaged(good, "config/env_id", "antigravity:Env-v0"))
    assert main(["data", "collect", "-k", str(path), "--rows", "10", "--out", str(tmp_path / "x.npz")]) == 2
    assert "would import the module 'antigravity'" in capsys.readouterr().err
    assert "antigravity" not in sys.modules
