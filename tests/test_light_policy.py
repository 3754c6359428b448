"""Policy files open without torch and Gymnasium, and whatever is not a policy file gets one clear line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rl_training.policies.graph import Layer, PolicyGraph, Spread
from rl_training.policies.policy_file import light_policy_bytes
from safetensors.numpy import save_file

import rl_training
from rl_training.core.errors import UserError
from rl_training.core.spaces import Spaces
from rl_training.experiment.exporting import export_checkpoint
from rl_training.policies.light_policy import LightPolicy
from rl_training.policies.loading import load_policy
from rl_training.policies.policy_metadata import METADATA_KEY
from support import ROOT, tiny_config, train


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with one policy in two formats, and its run."""
    folder = tmp_path_factory.mktemp("policies")
    result = train(tiny_config("sac", folder / "runs"))
    for suffix in ("onnx", "safetensors"):
        export_checkpoint(result.run_dir, folder / f"policy.{suffix}")
    return folder


BARE = """
import sys
for name in {blocked!r}:
    sys.modules[name] = None  # importing it raises ImportError
import numpy as np
import rl_training
policy = rl_training.load_policy({path!r})
print(policy.predict(np.array([0.5, -0.5, 1.0])).tolist(), policy.predict(np.zeros((3, 3))).shape)
"""
TRAINING = [
    "torch",
    "gymnasium",
    "pydantic",
    "yaml",
    "scipy",
    "typer",
    "rich",
    "h5py",
    "matplotlib",
    "tensorboard",
]


@pytest.mark.parametrize(
    ("suffix", "blocked"),
    [
        ("safetensors", [*TRAINING, "onnxruntime", "onnx"]),
        ("onnx", [*TRAINING, "onnx", "safetensors"]),
    ],
)
def test_needs_neither_torch_nor_gymnasium(folder: Path, suffix: str, blocked: list[str]) -> None:
    path = folder / f"policy.{suffix}"
    done = subprocess.run(
        [sys.executable, "-c", BARE.format(blocked=blocked, path=str(path))],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    expected = load_policy(path).predict([0.5, -0.5, 1.0]).tolist()
    assert done.stdout == f"{expected} (3, 1)\n"


def tiny_graph(head: str = "unbounded", spread: bool = False) -> PolicyGraph:
    """Two features, one hidden unit, two actions in [0, 10] and [-1, 3]: small enough for the head."""
    weights = Layer(np.array([[1.0, -2.0]], np.float32), np.array([0.5, 0.0], np.float32))
    return PolicyGraph(
        spaces=Spaces(2, (0.0, -1.0), (10.0, 3.0)),
        head=head,
        hidden=(Layer(np.array([[1.0], [1.0]], np.float32), np.array([0.0], np.float32)),),
        output=weights,
        obs_mean=np.array([1.0, 0.0], np.float32),
        obs_scale=np.array([2.0, 1.0], np.float32),
        spread=Spread(weights, -1.0, 1.0) if spread else None,
    )


def light(graph: PolicyGraph) -> LightPolicy:
    return LightPolicy(graph, {"graph": graph.description()})


def test_numbers_by_hand() -> None:
    policy = light(tiny_graph())
    # x = (2 - 1) / 2 + 0 = 0.5 -> relu 0.5 -> m = (1.0, -1.0) -> 1 * 5 + 5 = 10, -1 * 2 + 1 = -1
    np.testing.assert_array_equal(policy.predict([2.0, 0.0]), [10.0, -1.0])
    # x = -0.5 -> 0 -> m = (0.5, 0) -> 7.5, 1
    np.testing.assert_array_equal(policy.predict([[0.0, 0.0]]), [[7.5, 1.0]])
    squashed = light(tiny_graph("squashed")).predict([2.0, 0.0])
    np.testing.assert_allclose(squashed, [5 + 5 * np.tanh(1.0), 1 - 2 * np.tanh(1.0)], rtol=1e-6)


def test_distribution_by_hand() -> None:
    mean, log_std = light(tiny_graph("unbounded", spread=True)).distribution([6.0, 0.0])
    np.testing.assert_array_equal(mean, [3.0, -5.0])  # x = 2.5
    np.testing.assert_array_equal(log_std, [1.0, -1.0])  # clipped
    mean, _ = light(tiny_graph("tanh_mean", spread=True)).distribution([[6.0, 0.0]])
    np.testing.assert_allclose(mean, np.tanh([[3.0, -5.0]]), rtol=1e-6)
    with pytest.raises(UserError, match="holds no distribution: export it with --distribution"):
        light(tiny_graph()).distribution([6.0, 0.0])


def test_a_file_gives_back_the_graph(tmp_path: Path) -> None:
    graph = tiny_graph("squashed", spread=True)
    path = tmp_path / "p.safetensors"
    path.write_bytes(light_policy_bytes(graph, {"format_version": 1, "graph": graph.description()}))
    policy = load_policy(path)
    obs = np.random.default_rng(0).normal(size=(50, 2))
    np.testing.assert_array_equal(policy.predict(obs), light(graph).predict(obs))
    assert policy.has_distribution


@pytest.mark.parametrize("suffix", ["onnx", "safetensors"])
@pytest.mark.parametrize(
    ("obs", "message"),
    [
        ([1.0, 2.0], r"obs must have shape \(3,\) or \(n, 3\), got \(2,\)"),
        (np.zeros((2, 4)), r"got \(2, 4\)"),
        (np.zeros((1, 2, 3)), r"got \(1, 2, 3\)"),
        ([[0.0, 0.0, 0.0], [0.0, float("nan"), 0.0]], "obs must be finite, row 1 holds NaN or infinity"),
        (["a", "b", "c"], "obs must be numbers"),
    ],
)
def test_bad_observations(folder: Path, suffix: str, obs: Any, message: str) -> None:
    policy = load_policy(folder / f"policy.{suffix}")
    with pytest.raises(UserError, match=message):
        policy.predict(obs)
    with pytest.raises(UserError, match="deterministic must be true"):
        policy.act(np.zeros((1, 3)), deterministic=False)


def refused(path: Path) -> str:
    with pytest.raises(UserError) as caught:
        rl_training.load_policy(path)
    message = str(caught.value)
    assert str(path) in message and "\n" not in message
    return message


def test_files_that_are_not_policies(folder: Path, tmp_path: Path) -> None:
    assert "does not exist" in refused(tmp_path / "none.onnx")
    for suffix in (".onnx", ".safetensors"):
        (tmp_path / f"text{suffix}").write_text("not a model at all")
        assert "is not a" in refused(tmp_path / f"text{suffix}")
        whole = (folder / f"policy{suffix}").read_bytes()
        (tmp_path / f"cut{suffix}").write_bytes(whole[: len(whole) // 2])
        assert "damaged" in refused(tmp_path / f"cut{suffix}")
    (tmp_path / "p.pt").write_text("")
    assert "is TorchScript, which is a program" in refused(tmp_path / "p.pt")
    (tmp_path / "p.h5").write_text("")
    assert "ends in .safetensors or .onnx" in refused(tmp_path / "p.h5")
    (checkpoint,) = (folder / "runs").rglob("step_*.safetensors")
    assert "is a training checkpoint, not a policy file; export it first" in refused(checkpoint)
    save_file({"x": np.zeros(2)}, tmp_path / "foreign.safetensors")
    assert "is not a policy file of rl_training" in refused(tmp_path / "foreign.safetensors")


def test_inconsistent_or_newer_files(tmp_path: Path) -> None:
    graph = tiny_graph()
    described = graph.description()
    path = tmp_path / "p.safetensors"
    for changes, complaint in (
        ({"format_version": 2}, "newer version of rl_training (file format 2"),
        ({"format_version": None}, "its metadata makes no sense"),
        ({"graph": described | {"head": "magic"}}, "head must be one of"),
        ({"graph": described | {"hidden_layers": 3}}, "its parts do not fit together"),
        ({"graph": described | {"spaces": Spaces(5, (0.0,), (1.0,)).to_dict()}}, ""),
    ):
        path.write_bytes(light_policy_bytes(graph, {"format_version": 1, "graph": described, **changes}))
        with pytest.raises(UserError) as caught:
            load_policy(path)
        assert complaint in str(caught.value)


def test_foreign_and_too_new_onnx(folder: Path, tmp_path: Path) -> None:
    import onnx

    path = tmp_path / "p.onnx"
    model = onnx.load(str(folder / "policy.onnx"))
    model.opset_import[0].version = 999
    path.write_bytes(model.SerializeToString())
    assert "needs a newer ONNX opset or file version than onnxruntime" in refused(path)
    model.opset_import[0].version = 13
    described = json.loads(model.metadata_props[0].value)
    described["graph"]["spaces"]["obs_dim"] = 4
    for wrong, complaint in (
        (described, "graph does not fit its metadata"),
        ({"format_version": 1}, "incomplete"),
    ):
        model.metadata_props[0].value = json.dumps(wrong)
        path.write_bytes(model.SerializeToString())
        assert complaint in refused(path)
    assert [entry.key for entry in model.metadata_props] == [METADATA_KEY]
    del model.metadata_props[:]
    path.write_bytes(model.SerializeToString())
    assert "is not a policy of rl_training: it has no rl_training_policy metadata" in refused(path)
