"""Numbers that are chosen while a policy runs: at every door, in every file, refused where wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from helpers import BARE_STATE
from rl_training.core.errors import CheckpointError, ConfigError, UserError
from rl_training.core.spaces import Spaces
from rl_training.core.transforms import ObservationNormalizer
from rl_training.judging.verdict import DialCurve, DialPosition
from rl_training.models.actors import DeterministicTanh
from rl_training.models.networks import NetworkPlan
from rl_training.policies.export.torchscript import torchscript_outputs
from rl_training.policies.files import load_policy
from rl_training.policies.guard_fitting import GuardConfig, fit_guard
from rl_training.policies.inputs import RuntimeInput
from rl_training.policies.policy import Policy, pack_policy, unpack_policy
from rl_training.runs.export import export_policy

DIAL = RuntimeInput("dial", 0.0, 1.0, 0.25)
STATE = {**BARE_STATE, "config": {**BARE_STATE["config"], "algo_kwargs": {}}}
SPACES = Spaces(3, (-2.0,), (2.0,))
OBS = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)


def dialled() -> Policy:
    actor = DeterministicTanh(
        4, 1, NetworkPlan(hidden_sizes=(8,)), generator=torch.Generator().manual_seed(1)
    )
    steps = [ObservationNormalizer(torch.ones(3), torch.full((3,), 2.0))]
    return Policy(actor, SPACES, steps, inputs=(DIAL,)).snapshot()


def by_hand(policy: Policy, dial: Any) -> np.ndarray:
    """The network on normalised observations with the dial behind them, in the action's units."""
    given = (torch.from_numpy(OBS).double() - 1.0) / 2.001
    column = torch.as_tensor(np.broadcast_to(np.asarray(dial, np.float64), (6,)).copy()).unsqueeze(-1)
    return (2.0 * policy.actor.mode(torch.cat([given, column], dim=-1))).numpy()


def test_a_dial_is_taken_at_every_door() -> None:
    policy = dialled()
    for dial in (0.0, 0.5, 1.0):
        wanted = by_hand(policy, dial)
        assert np.abs(policy.predict(OBS, dial=dial) - wanted).max() < 2e-3  # the normaliser's own epsilon
        exact = policy.predict(OBS, dial=dial)
        np.testing.assert_array_equal(policy.act(OBS, dial=np.full((6, 1), dial)), exact)
        np.testing.assert_array_equal(policy.with_inputs(dial=dial).predict(OBS), exact)
        np.testing.assert_array_equal(policy.controller(6).act(OBS, dial=dial).action, exact)
        np.testing.assert_array_equal(policy.controller().act(OBS, dial=dial).action, exact)
    each = np.linspace(0, 1, 6)
    together = policy.predict(OBS, dial=each)
    alone = [policy.predict(row, dial=dial) for row, dial in zip(OBS, each, strict=True)]
    np.testing.assert_allclose(together, alone, atol=1e-6)
    assert np.abs(np.diff(policy.predict(OBS[[0] * 6], dial=each)[:, 0])).min() > 1e-4


def test_without_a_word_it_is_the_default() -> None:
    policy = dialled()
    default = policy.predict(OBS, dial=0.25)
    np.testing.assert_array_equal(policy.predict(OBS), default)
    np.testing.assert_array_equal(policy.controller(6).act(OBS, dial=None).action, default)
    controller = policy.controller()
    controller.act(OBS[0], dial=1.0)  # for that step alone
    np.testing.assert_array_equal(controller.act(OBS[1]).action, default[1])
    other = policy.with_inputs(dial=1.0)
    np.testing.assert_array_equal(policy.predict(OBS), default)
    assert [each.default for each in (*policy.inputs, *other.inputs)] == [0.25, 1.0]


@pytest.mark.parametrize("dial", [-0.1, 1.1, float("nan"), "half", [0.1, 0.2]])
def test_a_number_that_no_dial_has_is_refused(dial: Any) -> None:
    for call in (dialled().predict, dialled().controller(6).act):
        with pytest.raises(UserError, match=r"dial must be a number from 0 to 1"):
            call(OBS, dial=dial)
    with pytest.raises(UserError, match="dial must be a number"):
        dialled().with_inputs(dial=dial)


def test_an_input_that_it_does_not_have_is_refused() -> None:
    with pytest.raises(UserError, match=r"no dail \(did you mean .*dial.*its inputs are dial"):
        dialled().predict(OBS, dail=0.5)
    plain = Policy(DeterministicTanh(3, 1, NetworkPlan(hidden_sizes=(4,))), SPACES)
    with pytest.raises(UserError, match="this policy has no dial; it has no inputs beside observations"):
        plain.predict(OBS, dial=0.5)
    plain.predict(OBS, dial=None)


@pytest.mark.parametrize("numbers", [(1.0, 0.0, 0.5), (0.0, 1.0, 2.0), (0.0, float("inf"), 0.0)])
def test_bounds_and_default_make_sense(numbers: tuple[float, float, float]) -> None:
    with pytest.raises(ConfigError, match="low <= default <= high"):
        RuntimeInput("dial", *numbers)
    with pytest.raises(ConfigError, match="a word of its own"):
        RuntimeInput("obs", 0.0, 1.0, 0.0)


def test_a_checkpoint_keeps_inputs() -> None:
    policy = dialled()
    packed = pack_policy(policy)
    again = unpack_policy({**packed, "inputs": json.loads(json.dumps(packed["inputs"]))}).snapshot()
    assert again.inputs == (DIAL,)
    np.testing.assert_allclose(again.predict(OBS, dial=0.7), policy.predict(OBS, dial=0.7), atol=1e-6)
    assert "inputs" not in pack_policy(Policy(DeterministicTanh(3, 1), SPACES))
    with pytest.raises(CheckpointError, match="makes no sense"):
        unpack_policy({**packed, "inputs": [{"name": "dial", "low": 0.0}]})


@pytest.mark.parametrize("suffix", [".onnx", ".safetensors", ".pt"])
@pytest.mark.parametrize("guarded", [False, True])
def test_every_file_takes_the_dial(suffix: str, guarded: bool, tmp_path: Path) -> None:
    policy = dialled()
    if guarded:
        rows = torch.randn(300, 3, generator=torch.Generator().manual_seed(2))
        policy.guard = fit_guard(rows, rows[::4], GuardConfig(actions=False), SPACES, "x", (0.0,))
    file = export_policy(policy.with_inputs(dial=0.75), STATE, tmp_path / f"p{suffix}")
    if suffix == ".pt":
        names = ["action", "novelty"] if guarded else ["action"]
        compute = torchscript_outputs(file.read_bytes(), names)
        for dial in (0.0, 0.6):
            np.testing.assert_allclose(
                compute(OBS, {"dial": dial})["action"], policy.predict(OBS, dial=dial), atol=1e-6
            )
        return
    opened = load_policy(file)
    assert opened.inputs == (RuntimeInput("dial", 0.0, 1.0, 0.75),)
    for dial in (0.0, 0.6, np.linspace(0, 1, 6)):
        np.testing.assert_allclose(opened.predict(OBS, dial=dial), policy.predict(OBS, dial=dial), atol=1e-6)
    np.testing.assert_allclose(opened.predict(OBS), policy.predict(OBS, dial=0.75), atol=1e-6)
    turned = opened.with_inputs(dial=0.6).predict(OBS)
    np.testing.assert_allclose(turned, policy.predict(OBS, dial=0.6), atol=1e-6)
    step = opened.controller().act(OBS[0], dial=0.6)
    np.testing.assert_allclose(step.action, policy.predict(OBS[0], dial=0.6), atol=1e-6)
    assert np.isfinite(step.novelty) == guarded
    with pytest.raises(UserError, match="dial must be a number from 0 to 1"):
        opened.predict(OBS, dial=3.0)


def test_the_card_shows_value_against_dial(tmp_path: Path) -> None:
    positions = (
        DialPosition(0.0, "lion dial 0", 84.25, 80.0, 88.0, "indistinguishable", 0.0),
        DialPosition(1.0, "lion dial 1", 97.3, 95.0, 99.0, "better", 0.01),
    )
    curve = DialCurve("lion", positions, 1.0)
    file = export_policy(dialled(), STATE, tmp_path / "p.safetensors", curve=curve)
    card = file.with_name("p.safetensors.md").read_text()
    assert "| 0 | 84.25 [80, 88] | indistinguishable |\n| 1 | 97.3 [95, 99] | better |\n" in card
    plain = export_policy(dialled(), STATE, tmp_path / "q.safetensors").with_name("q.safetensors.md")
    assert "at other positions" not in plain.read_text()


def test_the_graph_keeps_the_dial_in_its_bounds(tmp_path: Path) -> None:
    """Whoever runs the ONNX file alone is not checked: beyond the end the dial is at its end."""
    onnxruntime = pytest.importorskip("onnxruntime")
    policy = dialled()
    file = export_policy(policy, STATE, tmp_path / "p.onnx")
    session = onnxruntime.InferenceSession(str(file))
    assert {each.name: each.shape for each in session.get_inputs()} == {
        "obs": ["batch", 3],
        "dial": ["batch", 1],
    }
    (action,) = session.run(["action"], {"obs": OBS, "dial": np.full((6, 1), 7.0, np.float32)})
    np.testing.assert_allclose(action, policy.predict(OBS, dial=1.0), atol=1e-6)
    card = Path(f"{file}.md").read_text()
    assert "| input `dial` | one number from 0 to 1, chosen at every step; 0.25 where nobody chooses" in card
    snippet = card.split("```python")[1].split("```")[0].replace("p.onnx", str(file))
    exec(compile(snippet, "card", "exec"), {})  # what the card tells a reader to run
