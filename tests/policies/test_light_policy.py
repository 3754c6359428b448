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
from safetensors.numpy import save_file

import rl_training
from helpers import ROOT, tiny_config, train
from rl_training.core.errors import UserError
from rl_training.core.spaces import Spaces
from rl_training.policies.export.numpy import LightPolicy, light_policy_bytes, open_light
from rl_training.policies.export.program import OPERATIONS, Node, Program
from rl_training.policies.files import load_policy
from rl_training.policies.opened import METADATA_KEY
from rl_training.runs.export import export_checkpoint


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


def test_the_command_that_asks_a_file_needs_no_torch_either(folder: Path) -> None:
    """As on a machine that only serves; what says what its options mean stands beside what trains."""
    words = ["predict", "--checkpoint", str(folder / "policy.safetensors"), "--obs", "0.5, -0.5, 1.0"]
    without = "import sys\nfor name in ('torch', 'gymnasium', 'scipy'):\n    sys.modules[name] = None\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{without}from rl_training.cli import main\nsys.exit(main({words!r}))"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    assert done.returncode == 0, done.stderr
    assert (
        json.loads(done.stdout)
        == load_policy(folder / "policy.safetensors").predict([0.5, -0.5, 1.0]).tolist()
    )


SPACES = Spaces(2, (0.0, -1.0), (10.0, 3.0))


def tiny_program(head: str = "clip") -> Program:
    """Two features, one hidden unit, two actions in [0, 10] and [-1, 3]: small enough for the head."""
    numbers = {
        "mean": [1.0, 0.0],
        "scale": [2.0, 1.0],
        "w1": [[1.0], [1.0]],
        "b1": [0.0],
        "w2": [[1.0, -2.0]],
        "b2": [0.5, 0.0],
        "low": -1.0,
        "high": 1.0,
        "half": [5.0, 2.0],
        "middle": [5.0, 1.0],
    }
    squash = [Node("tanh", ("m",), "unit")]
    clip = [Node("maximum", ("m", "low"), "raised"), Node("minimum", ("raised", "high"), "unit")]
    nodes = [
        Node("to_double", ("obs",), "x"),
        Node("subtract", ("x", "mean"), "centred"),
        Node("divide", ("centred", "scale"), "normal"),
        Node("linear", ("normal", "w1", "b1"), "sum"),
        Node("relu", ("sum",), "hidden"),
        Node("linear", ("hidden", "w2", "b2"), "m"),
        *(squash if head == "tanh" else clip),
        Node("multiply", ("unit", "half"), "scaled"),
        Node("add", ("scaled", "middle"), "moved"),
        Node("to_float", ("moved",), "action"),
        Node("to_float", ("m",), "m32"),
    ]
    constants = {name: np.array(values, dtype=np.float32) for name, values in numbers.items()}
    return Program(tuple(nodes), constants, {"action": "action", "mean": "m32", "log_std": "m32"})


def described(made: Program, **changes: Any) -> dict[str, Any]:
    return {
        "format_version": 2,
        **{"algo": "sac", "algo_class": "SAC", "env_id": None, "env_kwargs": {}, "observation_steps": []},
        **{"actor": {"kind": "unbounded", "draws": "none"}, "scores": {}, "reference_returns": None},
        "training": {
            **{"run": None, "seed": 0, "global_step": 1, "gradient_steps": 1, "config": {}, "data": {}},
            "versions": {},
        },
        "versions": {},
        "spaces": SPACES.to_dict(),
        "outputs": list(made.outputs),
        "program": made.description(),
        **changes,
    }


def test_numbers_by_hand() -> None:
    policy = LightPolicy(tiny_program(), described(tiny_program()))
    # x = (2 - 1) / 2 + 0 = 0.5 -> relu 0.5 -> m = (1.0, -1.0) -> 1 * 5 + 5 = 10, -1 * 2 + 1 = -1
    np.testing.assert_array_equal(policy.predict([2.0, 0.0]), [10.0, -1.0])
    # x = -0.5 -> 0 -> m = (0.5, 0) -> 7.5, 1
    np.testing.assert_array_equal(policy.predict([[0.0, 0.0]]), [[7.5, 1.0]])
    squashed = LightPolicy(tiny_program("tanh"), described(tiny_program())).predict([2.0, 0.0])
    np.testing.assert_allclose(squashed, [5 + 5 * np.tanh(1.0), 1 - 2 * np.tanh(1.0)], rtol=1e-6)
    np.testing.assert_array_equal(policy.distribution([6.0, 0.0])[0], [3.0, -5.0])  # x = 2.5
    plain = LightPolicy(tiny_program(), described(tiny_program(), outputs=["action"]))
    with pytest.raises(UserError, match="holds no distribution: export it with --distribution"):
        plain.distribution([6.0, 0.0])


@pytest.mark.parametrize(
    ("operation", "given", "wanted"),
    [
        ("relu", [-1.0, 2.0], [0.0, 2.0]),
        ("tanh", [0.5], [0.46211715726]),
        ("sigmoid", [0.0, -1000.0, 2.0], [0.5, 0.0, 0.88079707798]),
        ("silu", [2.0, -1.0], [1.76159415596, -0.26894142137]),
        ("gelu", [1.0, -2.0, 30.0], [0.84134474607, -0.04550026390, 30.0]),
        ("elu", [-1.0, 3.0], [-0.63212055883, 3.0]),
        ("mean", [[1.0, 3.0]], [[2.0]]),
        ("sum", [[1.0, 3.0]], [[4.0]]),
        ("smallest", [[1.0, 3.0], [5.0, -2.0]], [[1.0], [-2.0]]),
        ("transpose", [[1.0, 3.0]], [[1.0], [3.0]]),
    ],
)
def test_operations_by_hand(operation: str, given: Any, wanted: Any) -> None:
    np.testing.assert_allclose(OPERATIONS[operation](np.array(given)), wanted, rtol=1e-9, atol=1e-12)


def test_layer_norm_by_hand() -> None:
    # mean 2, variance 2/3: (1 - 2) / sqrt(2/3 + 1/3) = -1
    normed = OPERATIONS["layer_norm"](np.array([[1.0, 2.0, 3.0]]), epsilon=1 / 3)
    np.testing.assert_allclose(normed, [[-1.0, 0.0, 1.0]])


def test_a_file_gives_back_the_program(tmp_path: Path) -> None:
    program = tiny_program("tanh")
    path = tmp_path / "p.safetensors"
    path.write_bytes(light_policy_bytes(program, described(program)))
    policy = load_policy(path)
    obs = np.random.default_rng(0).normal(size=(50, 2))
    np.testing.assert_array_equal(
        policy.predict(obs), open_light(path.read_bytes(), described(program)).predict(obs)
    )
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
    save_file({"x": np.zeros(2)}, tmp_path / "foreign.safetensors")
    assert "is not a policy file of rl_training" in refused(tmp_path / "foreign.safetensors")


def test_inconsistent_or_newer_files(tmp_path: Path) -> None:
    program = tiny_program()
    plan = program.description()
    path = tmp_path / "p.safetensors"
    for changes, complaint in (
        ({"format_version": 3}, "newer version of rl_training (file format 3"),
        ({"format_version": None}, "its metadata makes no sense"),
        ({"format_version": 1}, "its metadata is incomplete"),
        ({"program": plan | {"nodes": [["magic", ["obs"], "action", {}]]}}, "cannot do 'magic'"),
        ({"program": plan | {"nodes": [["relu", ["later"], "action", {}]]}}, "'later' before it exists"),
        ({"program": plan | {"outputs": {"mean": "m32"}}}, "must give an action"),
        ({"program": plan | {"outputs": {"action": "m32", "mean": "hidden"}}}, "mean must have 2 numbers"),
        ({"program": plan | {"nodes": "none"}}, "program.nodes must be a list of values, got 'none'"),
        ({"spaces": Spaces(5, (0.0,), (1.0,)).to_dict()}, "its parts do not fit together"),
    ):
        path.write_bytes(light_policy_bytes(program, described(program, **changes)))
        with pytest.raises(UserError) as caught:
            load_policy(path)
        assert complaint in str(caught.value)
    broken = Program(program.nodes, {**program.constants, "b2": np.array([np.nan, 0.0])}, program.outputs)
    path.write_bytes(light_policy_bytes(broken, described(broken)))
    assert "b2 holds NaN or infinity" in refused(path)


def test_foreign_and_too_new_onnx(folder: Path, tmp_path: Path) -> None:
    import onnx

    path = tmp_path / "p.onnx"
    model = onnx.load(str(folder / "policy.onnx"))
    model.opset_import[0].version = 999
    path.write_bytes(model.SerializeToString())
    assert "needs a newer ONNX opset or file version than onnxruntime" in refused(path)
    model.opset_import[0].version = 13
    metadata = json.loads(model.metadata_props[0].value)
    metadata["spaces"]["obs_dim"] = 4
    for wrong, complaint in (
        (metadata, "graph does not fit its metadata"),
        ({"format_version": 2}, "spaces is required"),
    ):
        model.metadata_props[0].value = json.dumps(wrong)
        path.write_bytes(model.SerializeToString())
        assert complaint in refused(path)
    assert [entry.key for entry in model.metadata_props] == [METADATA_KEY]
    del model.metadata_props[:]
    path.write_bytes(model.SerializeToString())
    assert "is not a policy of rl_training: it has no rl_training_policy metadata" in refused(path)
