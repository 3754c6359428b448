"""Files of format version 1 still open, act as they did, and go on training as they would have."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rl_training import load_policy
from rl_training.core.checkpoints import load_run_state
from rl_training.policies.export.torchscript import open_torchscript
from rl_training.runs.evaluate import predict_checkpoint
from rl_training.runs.export import export_checkpoint
from rl_training.runs.resume import resume_training

FOLDER = Path(__file__).parents[1] / "fixtures" / "format_1"
EXPECTED: dict[str, Any] = json.loads((FOLDER / "expected.json").read_text())
OBS = np.array(EXPECTED["obs"], dtype=np.float32)
CHECKPOINTS = sorted(EXPECTED["after_20_more_steps"])
POLICIES = sorted(name for name in EXPECTED["files"] if "_policy" in name)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_checkpoint_acts_as_it_did(name: str) -> None:
    np.testing.assert_allclose(predict_checkpoint(FOLDER / name, OBS), EXPECTED["files"][name], atol=1e-6)


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_file_acts_as_it_did(name: str) -> None:
    file = FOLDER / name
    act = open_torchscript(file.read_bytes()) if file.suffix == ".pt" else load_policy(file).predict
    np.testing.assert_allclose(act(OBS), EXPECTED["files"][name], atol=1e-6)


@pytest.mark.parametrize("name", CHECKPOINTS)
def test_a_run_goes_on_from_it(name: str, tmp_path: Path) -> None:
    copied = Path(shutil.copy(FOLDER / name, tmp_path / name))
    result = resume_training(copied, total_timesteps=60, output_dir=tmp_path, quiet=True)
    wanted = EXPECTED["after_20_more_steps"][name]
    np.testing.assert_allclose(predict_checkpoint(result.run_dir, OBS), wanted, atol=1e-5)


def test_its_settings_have_todays_names() -> None:
    def settings(name: str) -> dict[str, Any]:
        kwargs: dict[str, Any] = load_run_state(FOLDER / name, skip=("learner",))["config"]["algo_kwargs"]
        return kwargs

    assert settings("sac.safetensors")["critic_layer_norm"] is True
    assert settings("cql.safetensors")["init"] == "orthogonal_small"


def test_it_exports(tmp_path: Path) -> None:
    file = export_checkpoint(FOLDER / "crr.safetensors", tmp_path / "crr.onnx")
    np.testing.assert_allclose(
        load_policy(file).predict(OBS), EXPECTED["files"]["crr.safetensors"], atol=1e-5
    )
