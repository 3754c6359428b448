"""Exported files act as the live policy does, for every algorithm and format; bad requests leave no file."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import rl_training
from helpers import BARE_STATE, home_of, slow_but_two, tiny_config, train
from rl_training import algorithms
from rl_training.cli import main
from rl_training.core.checkpoints import load_run_state, save_checkpoint
from rl_training.core.errors import UserError
from rl_training.core.registry import ALGORITHMS, builtin_algorithms
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import ObservationNormalizer
from rl_training.models import MLPSACModel
from rl_training.policies.acting import ActingPolicy
from rl_training.policies.export import onnx as onnx_export
from rl_training.policies.export.card import mean_interval, student_interval
from rl_training.policies.export.torchscript import METADATA_FILE, open_torchscript, quiet_deprecation
from rl_training.policies.export.trace import trace_policy
from rl_training.policies.files import load_policy
from rl_training.policies.opened import describe_policy
from rl_training.policies.policy import Policy, load_saved_policy
from rl_training.runs import export as exporting
from rl_training.runs.evaluate import evaluate_checkpoint
from rl_training.runs.export import SUFFIXES, check_same_actions, export_checkpoint
from rl_training.runtime.callbacks import TrainResult, evaluate_run_policy

SCALES = (1.0, 10.0, 100.0, 1000.0, 1e6)
ROWS = 2000
"""Observations per scale, so 10,000 in all."""

CLOSE = 1e-6
"""Ten times less than is promised: a float32 action in [-2, 2] is known to 2.4e-7."""

RANGE = np.array([1.0, 1.0, 8.0], dtype=np.float32)
"""Bounds of Pendulum's observations."""

# One run per algorithm, and one per actor that an algorithm has beside its usual one.
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{algo: (algo, {}) for algo in ALGORITHMS.names()},
    "td3": ("td3", {"learning_rate": 1e-5}),  # a few updates at the usual rate push every action to its bound
    "bc-gaussian": ("bc", {"policy": "gaussian"}),
    "awac-tanh_mean": ("awac", {"policy": "tanh_mean"}),
    "awac-squashed": ("awac", {"policy": "squashed"}),
    "cql-affine": ("cql", {"log_std_multiplier": 1.0}),
    "crr-online_actor": ("crr", {"act_with_target": False}),
    "sac-residual": ("sac", {"network": "residual", "layer_norm": True}),
    "iql-residual": ("iql", {"network": "residual", "layer_norm": True, "activation": "gelu"}),
    "td3_bc-after": ("td3_bc", {"layer_norm": "after", "activation": "elu"}),
    "bc-silu": ("bc", {"activation": "silu", "policy": "gaussian"}),
}
DETERMINISTIC = (
    "bc",
    "caps",
    "td3",
    "td3_bc",
    "td3_bc-after",
    "rebrac",
    "fql",
    "lion",
    "dqn",
    "discrete_cql",
)
OF_LEVELS = ("dqn", "discrete_cql")
WIDE = ("iql", "sac", "td3_bc")
"""Of which networks of the usual width are compared, on all observations; of the others narrower ones."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], TrainResult]:
    """One short run per variant, trained when first asked for."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("runs")
    done: dict[str, TrainResult] = {}

    def run(variant: str) -> TrainResult:
        if variant not in done:
            algo, kwargs = VARIANTS[variant]
            if not builtin_algorithms()[algo].online:
                kwargs = {"normalize_observations": True, "dataset_size": 1000, **kwargs}
            kwargs = {"hidden_sizes": [256, 256] if variant in WIDE else [64, 64], **kwargs}
            done[variant] = train(tiny_config(algo, folder / variant, algo_kwargs=kwargs, eval_episodes=2))
        return done[variant]

    return run


def checkpoint_of(result: TrainResult) -> Path:
    assert result.checkpoint_path is not None
    return result.checkpoint_path


def act_of(path: Path) -> Callable[[Any], Any]:
    return open_torchscript(path.read_bytes()) if path.suffix == ".pt" else load_policy(path).predict


def scaled_observations() -> Any:
    """Inside the range of the environment, and outside of it up to a million times."""
    unit = np.random.default_rng(1).uniform(-1.0, 1.0, size=(len(SCALES), ROWS, 3))
    return (unit * np.array(SCALES)[:, None, None] * RANGE).astype(np.float32).reshape(-1, 3)


@pytest.mark.parametrize("variant", slow_but_two(VARIANTS))
def test_every_format_acts_as_the_live_policy(
    variant: str, runs: Callable[[str], TrainResult], tmp_path: Path
) -> None:
    checkpoint = checkpoint_of(runs(variant))
    live = load_saved_policy(checkpoint, "cpu")
    obs = scaled_observations()[:: 1 if variant in WIDE else 4]
    wanted = live.predict(obs)
    assert wanted.dtype == np.float32 and len(obs) == (10_000 if variant in WIDE else 2_500)
    free = (np.abs(wanted) < 1.99).reshape(len(SCALES), -1).sum(axis=1)
    assert (
        variant in OF_LEVELS or free[:3].min() >= 10
    )  # not everything that is compared is an action at its bound
    for format, suffix in SUFFIXES.items():
        act = act_of(export_checkpoint(checkpoint, tmp_path / f"policy{suffix}", format=format))
        actions = act(obs)
        assert actions.dtype == np.float32
        np.testing.assert_allclose(actions, wanted, rtol=0, atol=CLOSE, err_msg=format)
        assert np.abs(actions).max() <= 2.0  # never outside Pendulum's bounds
        assert act(obs[:1]).shape == (1, 1) and act(obs[:7]).shape == (7, 1)  # any batch size


@pytest.mark.parametrize("format", SUFFIXES)
def test_other_bounds_and_normalisation(format: str) -> None:
    """Actions of any range to 1e-5 of its half; bounds that float32 has not are kept from inside."""
    spaces = Spaces(17, (0.1, -1000.0, 99.9), (0.3, 7.0, 100.0))
    rng = np.random.default_rng(3)
    mean, std = (torch.from_numpy(rng.uniform(0.0, 5.0, size=17).astype(np.float32)) for _ in range(2))
    learner = algorithms.SAC(model=MLPSACModel(17, 3, generator=torch.Generator().manual_seed(0)))
    learner.policy.set_units(spaces, [ObservationNormalizer(mean, std)])
    live = learner.policy.snapshot()
    program = trace_policy(live)
    encode, decode = exporting.codec(format)
    metadata = describe_policy(BARE_STATE, live, program, None)
    obs = (rng.normal(size=(500, 17)) * rng.choice(SCALES, size=(500, 1))).astype(np.float32)
    actions = decode(encode(live, program, metadata), metadata)(obs)["action"]
    low, high = np.array(spaces.action_low), np.array(spaces.action_high)
    # One step of a float32 near 100 is 1.5e-4 of the half width 0.05: there no equality can be closer.
    steps = np.spacing(np.abs(actions).astype(np.float32)).astype(np.float64)
    assert (np.abs(actions - live.predict(obs)) <= np.maximum(CLOSE * (high - low) / 2.0, steps)).all()
    assert (actions >= low).all() and (actions <= high).all()


@pytest.mark.parametrize("variant", slow_but_two(VARIANTS))
def test_distribution_outputs(variant: str, runs: Callable[[str], TrainResult], tmp_path: Path) -> None:
    checkpoint = checkpoint_of(runs(variant))
    if variant in DETERMINISTIC:
        with pytest.raises(UserError, match="has no single mean and log_std"):
            export_checkpoint(checkpoint, tmp_path / "p.onnx", distribution=True)
        assert list(tmp_path.iterdir()) == []
        return
    live = load_saved_policy(checkpoint, "cpu")
    obs = scaled_observations()[::10]
    close: dict[str, Any] = {"rtol": 1e-6, "atol": CLOSE}  # means that no tanh bounds are large far away
    with torch.no_grad():
        actor: Any = live.actor
        prepared = live.prepared(torch.from_numpy(obs))
        want_mean, want_log_std = (value.numpy() for value in actor.distribution(prepared))
    for suffix in (".onnx", ".safetensors"):
        policy = load_policy(export_checkpoint(checkpoint, tmp_path / f"p{suffix}", distribution=True))
        mean, log_std = policy.distribution(obs)
        assert mean.dtype == log_std.dtype == np.float32
        np.testing.assert_allclose(mean, want_mean, **close)
        np.testing.assert_allclose(log_std, np.broadcast_to(want_log_std, mean.shape), **close)
        np.testing.assert_allclose(policy.predict(obs), live.predict(obs), **close)
    with quiet_deprecation():
        script = torch.jit.load(str(export_checkpoint(checkpoint, tmp_path / "p.pt", distribution=True)))
    action, mean, log_std = (value.numpy() for value in script(torch.from_numpy(obs)))
    np.testing.assert_allclose(mean, want_mean, **close)
    np.testing.assert_allclose(log_std, np.broadcast_to(want_log_std, mean.shape), **close)
    np.testing.assert_allclose(action, live.predict(obs), **close)


@pytest.mark.parametrize(("variant", "part"), [("crr", "target.actor"), ("crr-online_actor", "model.actor")])
def test_crr_saves_the_actor_it_acts_with(
    variant: str, part: str, runs: Callable[[str], TrainResult]
) -> None:
    state = load_run_state(checkpoint_of(runs(variant)))
    saved, learned = state["policy"]["tensors"], state["learner"]["tensors"]
    other = "model.actor" if part == "target.actor" else "target.actor"
    assert all(torch.equal(saved[name], learned[f"{part}.{name}"]) for name in saved)
    assert not all(torch.equal(saved[name], learned[f"{other}.{name}"]) for name in saved)


class Acting(ActingPolicy):
    """A function as an evaluation takes it."""

    spaces = Spaces(3, (-2.0,), (2.0,))

    def __init__(self, act: Callable[[Any], Any]) -> None:
        self.function = act

    def act(self, obs: Any, deterministic: bool = True) -> Any:
        return self.function(np.asarray(obs, dtype=np.float32))


@pytest.mark.parametrize("algo", slow_but_two(ALGORITHMS.names()))
def test_a_rollout_returns_what_the_evaluation_says(
    algo: str, runs: Callable[[str], TrainResult], tmp_path: Path
) -> None:
    checkpoint = checkpoint_of(runs(algo))
    config = tiny_config(algo, tmp_path)
    evaluated = evaluate_checkpoint(checkpoint, num_episodes=2, device="cpu")["eval_return_mean"]
    for suffix in SUFFIXES.values():
        policy: Any = Acting(act_of(export_checkpoint(checkpoint, tmp_path / f"p{suffix}")))
        rollout = evaluate_run_policy(policy, home_of(algo), config, config.run_config(), 2).return_mean
        assert rollout == pytest.approx(evaluated, rel=1e-5), suffix


def test_an_exported_policy_is_evaluated_as_its_run_is(
    runs: Callable[[str], TrainResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = runs("iql")
    wanted = evaluate_checkpoint(result.run_dir, num_episodes=2)
    for suffix in (".onnx", ".safetensors"):
        file = export_checkpoint(result.run_dir, tmp_path / f"p{suffix}")
        assert main(["evaluate", "-k", str(file), "-n", "2"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told == pytest.approx(wanted, rel=1e-5), suffix
    assert told["global_step"] == 40


def test_metadata_is_the_same_in_every_format(runs: Callable[[str], TrainResult], tmp_path: Path) -> None:
    result = runs("iql")
    files = {s: export_checkpoint(result.run_dir, tmp_path / f"p{s}") for s in SUFFIXES.values()}
    metadata = load_policy(files[".safetensors"]).metadata
    del metadata["program"]  # the other formats are programs themselves
    assert metadata == load_policy(files[".onnx"]).metadata
    extra = {METADATA_FILE: ""}
    with quiet_deprecation():
        torch.jit.load(str(files[".pt"]), _extra_files=extra)
    assert metadata == json.loads(extra[METADATA_FILE])
    assert (metadata["algo"], metadata["env_id"]) == ("iql", "Pendulum-v1")
    assert metadata["spaces"] == {"obs_dim": 3, "action_low": [-2.0], "action_high": [2.0]}
    assert metadata["observation_steps"] == ["normalize"]
    assert metadata["training"]["run"] == result.run_dir.name
    assert metadata["training"]["seed"] == 7 and metadata["training"]["global_step"] == 40
    assert metadata["scores"]["eval_return_mean"] == result.metrics["eval_return_mean"]
    assert {"torch", "numpy", "rl_training"} <= metadata["versions"].keys()


def test_the_onnx_file_is_small_and_plain(runs: Callable[[str], TrainResult], tmp_path: Path) -> None:
    import onnx

    file = export_checkpoint(checkpoint_of(runs("cql")), tmp_path / "p.onnx")
    weights = (3 * 256 + 256) + (256 * 256 + 256) + 2 * (256 + 1)
    assert file.stat().st_size < 4 * weights + 12_000  # four bytes each, and the metadata
    model = onnx.load(str(file))
    assert [(opset.domain, opset.version) for opset in model.opset_import] == [("", onnx_export.OPSET)]
    operators = {node.op_type for node in model.graph.node}
    assert operators == {
        "Cast",
        "Sub",
        "Div",
        "Gemm",
        "Relu",
        "MatMul",
        "Slice",
        "Tanh",
        "Mul",
        "Add",
        "Max",
        "Min",
        "Identity",
    }
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"


def test_managed_classes_export(tmp_path: Path) -> None:
    sac = rl_training.SAC(tiny_config("sac", tmp_path / "runs"))
    with pytest.raises(UserError, match=r"has no policy yet: call learn\(\) or load\(\) first"):
        sac.save_policy(tmp_path / "early.safetensors")
    sac.learn(quiet=True)
    obs = np.array([0.5, -0.5, 1.0], dtype=np.float32)
    for path in (sac.save_policy(tmp_path / "p.safetensors"), sac.export(tmp_path / "p.onnx")):
        action = rl_training.load_policy(path).predict(obs)
        assert action.shape == (1,)
        np.testing.assert_allclose(action, sac.predict(obs), atol=1e-5)


# ---- the model card


@pytest.mark.slow
def test_model_card_tells_scores_seeds_and_how_to_load(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [
        train(tiny_config("td3_bc", tmp_path / "runs", seed=seed, eval_episodes=3)) for seed in (0, 1, 2)
    ]
    train(tiny_config("td3_bc", tmp_path / "runs", seed=3, algo_kwargs={"gamma": 0.5}))  # not a sister
    for suffix in SUFFIXES.values():
        export_checkpoint(results[1].run_dir, tmp_path / f"p{suffix}")
    card = (tmp_path / "p.onnx.md").read_text()
    means = [result.metrics["eval_return_mean"] for result in results]
    interval = mean_interval(means)
    assert interval is not None
    assert f"Over 3 seeds: {np.mean(means):.1f}, 95 % interval [{interval[0]:.1f}, {interval[1]:.1f}]" in card
    assert f"Seed 1: mean return {means[1]:.1f} over 3 episode(s)" in card
    assert "random data of Pendulum-v1 (220 rows, seed 3)" in card
    assert "## Limits" in card and "onnxruntime_cxx_api.h" in card
    monkeypatch.chdir(tmp_path)
    for name in ("p.onnx.md", "p.safetensors.md", "p.pt.md"):  # the Python in the card runs
        code = (tmp_path / name).read_text().split("```python\n")[1].split("```")[0]
        assert len(code.splitlines()) <= 10
        with quiet_deprecation():
            exec(code, {})


def test_intervals_of_means() -> None:
    assert mean_interval([3.0]) is None
    # mean 2, sample deviation 1, t(0.975, 2) = 4.30265
    assert mean_interval([1.0, 2.0, 3.0]) == pytest.approx(
        (2 - 4.30265 / 3**0.5, 2 + 4.30265 / 3**0.5), rel=1e-5
    )
    assert student_interval(5.0, 0.0, 4) == (5.0, 5.0)


# ---- bad requests


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    assert main(["export", *map(str, arguments)]) == 2
    message = capsys.readouterr().err
    assert message.startswith("error: ") and message.count("\n") == 1
    return message


def test_export_command_and_its_mistakes(
    runs: Callable[[str], TrainResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_dir = runs("sac").run_dir
    out = tmp_path / "deep" / "policy.onnx"
    assert main(["export", "--checkpoint", str(run_dir), "--format", "onnx", "--out", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert sorted(file.name for file in out.parent.iterdir()) == ["policy.onnx", "policy.onnx.md"]
    start = ("--checkpoint", run_dir, "--out")
    assert "format must be one of safetensors" in refused(capsys, *start, out, "--format", "tflite")
    assert "out must end in .pt" in refused(capsys, *start, out, "--format", "torchscript")
    assert "out must end in the suffix" in refused(capsys, *start, tmp_path / "policy.bin")
    blocker = tmp_path / "file"
    blocker.write_text("")
    assert "cannot write" in refused(capsys, *start, blocker / "policy.onnx")
    assert "does not exist" in refused(capsys, "--checkpoint", tmp_path / "no", "--out", tmp_path / "a.onnx")
    assert sorted(file.name for file in tmp_path.iterdir()) == ["deep", "file"]


@pytest.mark.parametrize(
    ("number", "words"), [(errno.ENOSPC, "No space left on device"), (errno.EROFS, "Read-only file system")]
)
def test_a_disk_that_cannot_be_written_keeps_the_old_file(
    number: int,
    words: str,
    runs: Callable[[str], TrainResult],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    out = tmp_path / "policy.safetensors"
    out.write_text("old")

    def full(descriptor: int) -> None:
        raise OSError(number, words)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match=rf"cannot write .*: {words}"):
        export_checkpoint(runs("sac").run_dir, out)
    assert out.read_text() == "old" and list(tmp_path.iterdir()) == [out]


def test_a_network_that_cannot_be_exported_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    learner = algorithms.SAC(model=MLPSACModel(3, 1, hidden_sizes=(4,)))
    net = learner.model.actor.net
    monkeypatch.setattr(net, "activation", torch.special.bessel_j0)
    with pytest.raises(
        UserError, match="'squashed' on network 'mlp' cannot be exported: it uses torch's special"
    ):
        trace_policy(learner.policy)
    monkeypatch.setattr(net, "activation", lambda x: x + float(len(x)))
    with pytest.raises(UserError, match="its steps depend on the number of observations"):
        trace_policy(learner.policy)


def test_a_file_that_acts_otherwise_is_not_written(
    runs: Callable[[str], TrainResult], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy: Policy = load_saved_policy(checkpoint_of(runs("sac")), "cpu")
    with pytest.raises(UserError, match=r"was not written: its actions differ .* by 1\.0e-03 of their range"):
        check_same_actions(
            policy, lambda obs, inputs: {"action": policy.predict(obs) + 0.002}, Path("p.onnx")
        )
    wrong = (
        lambda policy, program, metadata: b"",
        lambda content, metadata: lambda obs, inputs: {"action": obs[:, :1] * 100.0},
    )
    monkeypatch.setattr(exporting, "codec", lambda format: wrong)
    with pytest.raises(UserError, match="was not written"):
        export_checkpoint(runs("sac").run_dir, tmp_path / "p.onnx")
    assert list(tmp_path.iterdir()) == []


def test_critic_weighted_draws_have_no_plain_distribution(tmp_path: Path) -> None:
    result = train(tiny_config("crr", tmp_path / "runs", algo_kwargs={"critic_weighted": True}))
    with pytest.raises(UserError, match=r"critic_weighted.*has no single mean and log_std"):
        export_checkpoint(result.run_dir, tmp_path / "p.onnx", distribution=True)
    assert export_checkpoint(result.run_dir, tmp_path / "p.onnx").is_file()


# ---- checkpoints of strangers


def without(key: str) -> Callable[[dict[str, Any]], object]:
    return lambda state: state["config"].pop(key)


@pytest.mark.parametrize("key", ["env_id", "env_kwargs", "algo_kwargs"])
def test_a_config_that_leaves_out_what_may_be_left_out(
    key: str, runs: Callable[[str], TrainResult], tmp_path: Path
) -> None:
    """`env_id` above all: a run on a log has none."""
    state = load_run_state(checkpoint_of(runs("bc")))
    without(key)(state)
    save_checkpoint(tmp_path / "c.safetensors", state)
    out = tmp_path / "p.safetensors"
    assert main(["export", "--checkpoint", str(tmp_path / "c.safetensors"), "--out", str(out)]) == 0
    policy, card = load_policy(out), (tmp_path / "p.safetensors.md").read_text()
    np.testing.assert_array_equal(
        policy.predict(np.ones(3)), load_saved_policy(runs("bc").run_dir).predict(np.ones(3))
    )
    if key == "env_id":
        assert policy.metadata["env_id"] is None
        assert "BC policy for the system that its log was recorded on" in card


HOSTILE_STATES: dict[str, tuple[Callable[[dict[str, Any]], object], str]] = {
    "no algo": (without("algo"), "config does not fit this version: algo is required"),
    "env_id": (lambda s: s["config"].update(env_id=3), "env_id must be text or null, got 3"),
    "algo_kwargs": (lambda s: s["config"].update(algo_kwargs=[1]), "algo_kwargs must be a mapping"),
    "zero width": (lambda s: s["policy"]["spaces"].update(obs_dim=0), "obs_dim must be >= 1, got 0"),
}


@pytest.mark.parametrize("name", HOSTILE_STATES)
def test_a_checkpoint_that_makes_no_sense_is_refused_in_one_line(
    name: str, runs: Callable[[str], TrainResult], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = load_run_state(checkpoint_of(runs("bc")))
    change, complaint = HOSTILE_STATES[name]
    change(state)
    save_checkpoint(tmp_path / "c.safetensors", state)
    message = refused(capsys, "--checkpoint", tmp_path / "c.safetensors", "--out", tmp_path / "p.onnx")
    assert complaint in message and "c.safetensors" in message
    assert [file.name for file in tmp_path.iterdir()] == ["c.safetensors"]


def test_half_a_judgement_in_a_checkpoint_is_none(runs: Callable[[str], TrainResult], tmp_path: Path) -> None:
    state = load_run_state(checkpoint_of(runs("bc")))
    state["results"] = {"judge_value": 1.0, "judge_low": "a", "judge_note": 3}
    save_checkpoint(tmp_path / "c.safetensors", state)
    export_checkpoint(tmp_path / "c.safetensors", tmp_path / "p.safetensors")
    assert "**Estimated" not in (tmp_path / "p.safetensors.md").read_text()
