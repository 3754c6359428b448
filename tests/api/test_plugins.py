"""Parts from outside: registered in Python, and installed as a package that the command line finds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import rl_training
from helpers import ROOT, tiny_config, train
from rl_training.algorithms import Recipe
from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, MetricTensors, Noise, NoiseShapes
from rl_training.config.data import OfflineFields
from rl_training.core.checkpoints import load_run_state, save_checkpoint
from rl_training.core.errors import CheckpointError, ConfigError
from rl_training.core.registry import ALGORITHMS, Registry
from rl_training.models import MLPTD3Model, NetworkConfig
from rl_training.models.actors import DeterministicTanh
from rl_training.models.networks import NETWORKS, Network, register_network
from rl_training.runs.evaluate import evaluate_checkpoint, predict_checkpoint
from rl_training.runs.resume import finetune_checkpoint, resume_training

PLUGIN = ROOT / "examples" / "plugin"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The example package, installed into a folder of its own, and the environment of a new process."""
    folder = tmp_path_factory.mktemp("site")
    copied = shutil.copytree(PLUGIN, tmp_path_factory.mktemp("plugin") / "plugin")
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run(
        [*command, "--quiet", "--target", str(folder), str(copied)], check=True, capture_output=True
    )
    paths = os.pathsep.join([str(ROOT / "src"), str(folder)])
    return {**os.environ, "PYTHONPATH": paths}


ONE_AFTER_ANOTHER = """
import json, sys
from rl_training.cli import main
sys.exit(next((code for words in json.loads(sys.argv[1]) if (code := main(words))), 0))
"""


def in_new_process(environment: dict[str, str], *commands: list[object]) -> str:
    """What these commands print, one after the other in a process that has imported nothing yet."""
    words = json.dumps([[str(word) for word in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-c", ONE_AFTER_ANOTHER, words],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def write_steps(path: Path) -> None:
    rng = np.random.default_rng(0)
    lines = []
    for _ in range(6):
        for _ in range(20):
            obs, action = rng.uniform(-1, 1, 2), rng.uniform(-1, 1)
            lines.append(f"{obs[0]:.4f} {obs[1]:.4f} | {action:.4f} | {-abs(obs[0] - action):.4f}")
        lines.append("")
    path.write_text("\n".join(lines))


@pytest.mark.slow
def test_an_installed_package_works_everywhere(installed: dict[str, str], tmp_path: Path) -> None:
    log = tmp_path / "robot.steps"
    write_steps(log)
    kwargs = {"network": "sine", "network_options": {"frequency": 2.0}, "layer_norm": True, "compile": False}
    kwargs |= {"hidden_sizes": [8, 8], "batch_size": 16, "action_low": [-1.0], "action_high": [1.0]}
    changes = [f"--set=algo_kwargs.{name}={json.dumps(value)}" for name, value in kwargs.items()]
    start = ["train", "--algo", "pulled_td3", "--data", log, "--steps", 30, "--seeds", "0,1"]
    begin = [*start, "--output-dir", tmp_path / "runs", "--quiet", *changes]
    assert "actor_pull" in in_new_process(installed, ["describe", "pulled_td3"], begin)
    run = tmp_path / "runs" / "pulled_td3-data-s1"
    of_the_run = ["--checkpoint", run]
    shown = in_new_process(
        installed,
        ["resume", *of_the_run, "--total-timesteps", 40, "--quiet"],
        ["predict", *of_the_run, "--obs", "0.1, 0.2"],
        *(
            ["export", *of_the_run, "--out", tmp_path / f"p.{suffix}"]
            for suffix in ("onnx", "safetensors", "pt")
        ),
    )
    before = json.loads(shown.splitlines()[1])
    for suffix in ("onnx", "safetensors"):  # which need the package no more
        action = rl_training.load_policy(tmp_path / f"p.{suffix}").predict([0.1, 0.2])
        np.testing.assert_allclose(action, before, atol=1e-5)
    assert summary_of(run)["global_step"] == 40
    with pytest.raises(
        CheckpointError, match=r"needs the network 'sine', .* package 'rl-training-example' had"
    ):
        predict_checkpoint(run, [0.1, 0.2])
    for train_on in (resume_training, lambda path: finetune_checkpoint(path, timesteps=5)):
        with pytest.raises(
            CheckpointError, match=r"needs the algorithm 'pulled_td3', .*'rl-training-example' had"
        ):
            train_on(run)


def test_to_act_the_algorithm_need_not_be_known(tmp_path: Path) -> None:
    result = train(tiny_config("sac", tmp_path, eval_episodes=2))
    state = {**load_run_state(result.run_dir), "algo": "of_nobody", "algo_package": "gone"}
    state["config"] = {**state["config"], "algo": "of_nobody"}
    state["config"]["algo_kwargs"] = {**state["config"]["algo_kwargs"], "setting_of_its_own": 3}
    save_checkpoint(tmp_path / "foreign.safetensors", state)
    metrics = evaluate_checkpoint(tmp_path / "foreign.safetensors")
    assert metrics["eval_return_mean"] == result.metrics["eval_return_mean"]


def summary_of(run: Path) -> dict[str, Any]:
    metrics: dict[str, Any] = json.loads((run / "summary.json").read_text())["metrics"]
    return metrics


def test_the_example_is_one_file_per_part() -> None:
    files = {path.name: len(path.read_text().splitlines()) for path in PLUGIN.rglob("*.py")}
    assert files.keys() == {"__init__.py", "pulled_td3.py", "sine_network.py", "step_text.py"}
    assert max(files.values()) <= 200
    assert "3.11" in (PLUGIN / "pyproject.toml").read_text() and sysconfig.get_python_version() >= "3.11"


# ---- the list itself


@pytest.fixture
def networks(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(NETWORKS, "_parts", dict(NETWORKS._parts))
    monkeypatch.setattr(NETWORKS, "_packages", dict(NETWORKS._packages))
    yield


def test_a_name_belongs_to_one_part() -> None:
    numbers: Registry[object] = Registry("number", "rl_training.test", {"one": "math:pi"})
    mine = object()
    numbers.register("two", mine)
    numbers.register("two", mine)
    assert numbers.names() == ("one", "two") and numbers.get("two") is mine
    assert numbers.package_of("one") is None and numbers.package_of("two") == "builtins"
    with pytest.raises(ConfigError, match=r"number 'two' exists already \(in builtins\)"):
        numbers.register("two", object())
    with pytest.raises(ConfigError, match=r"number 'one' exists already \(in rl_training\)"):
        numbers.register("one", mine)
    with pytest.raises(
        ConfigError, match=r"number must be one of one, two, got 'tow' \(did you mean 'two'\?\)"
    ):
        numbers.get("tow")


def test_two_packages_with_one_name_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for package in ("first", "second"):
        info = tmp_path / f"{package}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rl_training.networks]\nwavy = {package}:Net\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'wavy' is offered twice, by first and by second; uninstall one"):
        NETWORKS.names()


def test_a_package_that_cannot_be_imported_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    info = tmp_path / "broken-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[rl_training.networks]\ncrash = no_such_module:Net\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigError, match="'crash' of the package broken cannot be imported: ModuleNotFound"):
        NETWORKS.get("crash")


# ---- what a learner of one's own moves


class Cloner(Learner):
    """Clones behaviour with a learned weight; `kept` says where the weight is put."""

    kept: ClassVar[str] = "scalars"

    def setup(self) -> None:
        self.actor = self.part("actor", DeterministicTanh)
        self.log_weight = torch.zeros((), device=self.device, requires_grad=True)
        if self.kept == "scalars":
            self.scalars["log_weight"] = self.log_weight
        self.add_optimizer("actor", self.actor.parameters(), "actor")
        self.add_optimizer("weight", [self.log_weight], "actor")

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {}

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        distance = (self.actor.mode(batch["obs"]) - batch["actions"]).square().sum(-1)
        loss = (self.log_weight.exp().unsqueeze(-1) * (distance - 0.1)).mean(-1)
        self.minimize("actor", loss)
        self.minimize("weight", (self.log_weight.exp().unsqueeze(-1) * (distance.detach() - 0.1)).mean(-1))
        return {"actor_loss": loss.detach(), "weight": self.log_weight.detach().exp()}


class Forgetful(Cloner):
    """Its weight is an attribute and nothing more."""

    kept = "attribute"


class WithNetwork(Cloner):
    """A network of its own that the model does not know."""

    def setup(self) -> None:
        super().setup()
        self.extra = nn.Linear(2, 1)
        self.add_optimizer("extra", self.extra.parameters(), "critic")


class Anonymous(Cloner):
    """A tensor that nobody but the optimiser knows."""

    def setup(self) -> None:
        super().setup()
        self.add_optimizer("late", [torch.zeros(3, requires_grad=True)], "critic")


class WithAdam(Cloner):
    """An optimiser of torch's own, whose moments are in no state."""

    def setup(self) -> None:
        super().setup()
        self.own_adam = torch.optim.Adam([self.log_weight])


class OneForAll(Cloner):
    """A metric that is one number however many seeds there are."""

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        return super().step(batch, noise, stage) | {"mean": batch["rewards"].mean()}


class ClonerConfig(LearnerConfig, NetworkConfig, OfflineFields):
    """Settings of a run with any of them."""


@pytest.fixture
def clone(tmp_path: Path) -> Callable[..., Any]:
    """Train a learner of one's own for some steps, as one seed or several."""

    def run(learner: type[Learner], folder: str, steps: int = 30, **settings: Any) -> Any:
        name = learner.__name__.lower()
        if name not in ALGORITHMS:
            rl_training.register_algorithm(
                Recipe(name=name, learner=learner, model=MLPTD3Model, settings=ClonerConfig)
            )
        return train(tiny_config(name, tmp_path / folder, total_timesteps=steps, **settings))

    return run


def learned_weight(result: Any) -> float:
    return float(load_run_state(result.run_dir)["learner"]["tensors"]["scalar.log_weight"])


def test_a_learned_scalar_is_resumed_and_stacked(clone: Callable[..., Any]) -> None:
    at_once = learned_weight(clone(Cloner, "at_once", 30, seed=7))
    assert at_once != 0.0
    resumed = resume_training(clone(Cloner, "halves", 15, seed=7).run_dir, total_timesteps=30, quiet=True)
    assert learned_weight(resumed) == at_once
    stacked = clone(Cloner, "stacked", 30, seeds=(3, 7))
    assert learned_weight(stacked.members[1]) == pytest.approx(at_once, rel=1e-4)
    assert learned_weight(stacked.members[0]) != pytest.approx(at_once, rel=1e-4)


@pytest.mark.parametrize(
    ("learner", "complaint"),
    [
        (
            Forgetful,
            r"^Forgetful: the optimiser 'weight' moves self\.log_weight of shape \(\), .* lost on resume; "
            r"put it into self\.scalars\['log_weight'\] in setup, or into the model$",
        ),
        (WithNetwork, r"^WithNetwork: the optimiser 'extra' moves self\.extra\.weight of shape \(1, 2\), "),
        (
            Anonymous,
            r"^Anonymous: the optimiser 'late' moves its tensor 0 of shape \(3,\), .*scalars\['late'\]",
        ),
        (
            WithAdam,
            r"^WithAdam: the optimiser self\.own_adam .* start anew .* self\.add_optimizer\('own_adam', ",
        ),
    ],
)
@pytest.mark.parametrize("seeds", [None, (0, 1)])
def test_what_would_be_lost_on_resume_is_refused(
    clone: Callable[..., Any], learner: type[Learner], complaint: str, seeds: tuple[int, ...] | None
) -> None:
    with pytest.raises(ConfigError, match=complaint):
        clone(learner, "refused", seeds=seeds)


def test_a_metric_without_seeds_is_named(clone: Callable[..., Any]) -> None:
    clone(OneForAll, "single")
    with pytest.raises(
        ConfigError, match=r"the metric mean must be one number per seed, of shape \(2,\), got shape \(\)"
    ):
        clone(OneForAll, "stacked", seeds=(0, 1))


# ---- networks that cannot do everything


class OwnLayers(Network):
    """Plain torch layers: they know no leading axes."""

    def build(self, in_features: int, out_features: int) -> None:
        self.net = nn.Sequential(nn.Linear(in_features, 8), nn.ReLU(), nn.Linear(8, out_features))

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        out: Tensor = self.net(x)
        return out


class Odd(Network):
    """Right in every way, with an operation that no exported format has."""

    def build(self, in_features: int, out_features: int) -> None:
        self.hidden, self.output = self.layer(in_features, 8), self.output_layer(8, out_features)

    def forward(self, x: Tensor, keep: Tensor | None = None) -> Tensor:
        out: Tensor = self.output(torch.atan(self.hidden(x)))
        return out


@pytest.mark.usefixtures("networks")
def test_what_a_network_cannot_do_is_said_before_training(tmp_path: Path) -> None:
    register_network("own_layers", OwnLayers)
    register_network("odd", Odd)
    with pytest.raises(
        ConfigError, match=r"'own_layers' cannot be one of an ensemble: its parameter net\.0\.weight"
    ):
        train(tiny_config("sac", tmp_path, algo_kwargs={"network": "own_layers"}))
    with pytest.raises(ConfigError, match="network 'own_layers' cannot be stacked"):
        train(tiny_config("bc", tmp_path, seeds=(0, 1), algo_kwargs={"network": "own_layers"}))
    with pytest.warns(UserWarning, match="'odd' cannot be exported: it uses torch's atan"):
        result = train(tiny_config("sac", tmp_path, algo_kwargs={"network": "odd"}))
    assert predict_checkpoint(result.run_dir, [0.0, 0.0, 0.0]).shape == (1,)
    with pytest.raises(ConfigError, match="register_algorithm takes a Recipe"):
        rl_training.register_algorithm(object())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="must be a subclass of Network"):
        register_network("text", str)  # type: ignore[arg-type]


def test_a_setting_of_no_chosen_network_is_a_mistake(tmp_path: Path) -> None:
    options = {"network": "residual", "network_options": {"expansoin": 2}}
    with pytest.raises(ConfigError, match=r"network_options\.expansoin is not a setting of network residual"):
        train(tiny_config("sac", tmp_path, algo_kwargs=options))
