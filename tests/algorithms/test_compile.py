"""Compiled updates over a whole run: one graph per stage, nothing traced again. Memory does not grow.

That compiled updates equal eager ones is checked for each algorithm in its own `test_<algo>_update.py`, with
a backend that generates no code; here two of them run as users run them.
"""

import functools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import learner_checks as checks
from helpers import tiny_config, train
from rl_training.algorithms import BC, IQL, SAC, TD3BC
from rl_training.algorithms.graphs import CompiledStep
from rl_training.algorithms.learner import Learner
from rl_training.models import MLPIQLModel, MLPSACModel, MLPTD3Model
from rl_training.models.models import PolicyModel
from rl_training.runtime import loop as compiling

pytestmark = pytest.mark.slow

LEARNERS = {
    "bc": (BC, MLPSACModel),
    "sac": (SAC, MLPSACModel),
    "iql": (IQL, MLPIQLModel),
    "td3_bc": (TD3BC, MLPTD3Model),
}


def build(algo: str, seed: int = 0) -> Learner:
    learner, model = LEARNERS[algo]
    return learner(checks.model(model, seed, hidden_sizes=(16,)), seed=seed)


def graphs() -> int:
    """How many graphs were traced since the last reset."""
    traced: int = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    return traced


@pytest.fixture
def fresh_compiler() -> Iterator[None]:
    """No graphs and no counts of other tests."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    yield
    torch._dynamo.reset()


@pytest.mark.skipif(
    compiling.missing_for_compiling("cpu") is not None, reason="inductor needs a C++ compiler"
)
@pytest.mark.filterwarnings(
    "ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"
)  # torch's own
@pytest.mark.parametrize("algo", ["iql", "sac"])
def test_generated_code_equals_eager(algo: str) -> None:
    checks.check_compiled_equals_eager(functools.partial(build, algo), backend="inductor")


@pytest.mark.parametrize(("algo", "kind"), [(SAC, MLPSACModel), (IQL, MLPIQLModel)])
def test_a_residual_network_is_stacked_and_compiled_as_the_plain_one_is(
    algo: type[Learner], kind: type[PolicyModel], fresh_compiler: None
) -> None:
    def residual(seed: int) -> Learner:
        model = checks.model(
            kind, seed, network="residual", layer_norm=True, network_options={"expansion": 2}
        )
        return algo(model, seed=seed)

    checks.check_stacked_equals_single(residual, updates=3, seeds=(0, 1))
    checks.check_compiled_equals_eager(residual, updates=2, backend=checks.GRAPHS)


def test_a_run_traces_each_stage_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fresh_compiler: None
) -> None:
    """Delayed actor updates, a rate that changes every step, logging and a checkpoint in the middle."""
    monkeypatch.setattr(Learner, "compile", functools.partialmethod(Learner.compile, backend="aot_eager"))
    schedule = {"learning_rate_schedule": "cosine", "warmup_steps": 5, "policy_delay": 2, "compile": True}
    config = tiny_config("td3_bc", tmp_path, log_interval=3, checkpoint_interval=20, algo_kwargs=schedule)
    assert train(config).metrics["gradient_steps"] == 40
    assert graphs() == 2


def test_a_changed_batch_is_noticed_as_another_graph(fresh_compiler: None) -> None:
    """What the counts above would show if something were traced again."""
    learner = build("bc")
    learner.compile(backend="aot_eager")
    for step in range(3):
        learner.update(checks.random_batch(step), global_step=step)
    assert graphs() == 1
    learner.update(checks.random_batch(3, batch_size=checks.BATCH + 1), global_step=3)
    assert graphs() == 2


def test_compiled_updates_take_the_batch_that_they_are_given(fresh_compiler: None) -> None:
    """Also where the first one holds a tensor twice, or later ones lie in memory in another order."""
    eager, compiled = build("sac"), build("sac")
    compiled.compile(backend=checks.GRAPHS)
    twice = {**(first := checks.random_batch(0)), "next_obs": first["obs"]}
    turned = {
        name: value.mT.contiguous().mT for name, value in checks.random_batch(1).items() if value.ndim > 1
    }
    for step, batch in enumerate([twice, checks.random_batch(1), checks.random_batch(1) | turned, twice]):
        for learner in (eager, compiled):
            learner.update(batch, global_step=step)
        assert checks.difference(eager, compiled) < 1e-3
    assert graphs() == 2


def test_a_graph_is_called_without_looking_at_the_learner_again(fresh_compiler: None) -> None:
    """What makes the calls short. Numbers that a learner changes in place, such as rates, are still felt."""
    learner = build("bc")
    learner.compile(backend=checks.GRAPHS)
    learner.update(checks.random_batch(0), global_step=0)
    (step,) = learner._steps.values()
    assert isinstance(step, CompiledStep)
    step.by_torch = lambda batch, noise: pytest.fail("the long way in")
    learner.set_learning_rate_scale(0.0)
    before = learner.model.actor.net.output.weight.clone()
    learner.update(checks.random_batch(1), global_step=1)
    assert torch.equal(learner.model.actor.net.output.weight, before)
    learner.set_learning_rate_scale(1.0)
    learner.update(checks.random_batch(2), global_step=2)
    assert not torch.equal(learner.model.actor.net.output.weight, before)


@pytest.mark.parametrize("algo", ["sac", "iql", "td3_bc"])
def test_a_state_that_is_loaded_later_is_what_a_graph_goes_on_from(algo: str, fresh_compiler: None) -> None:
    """The inputs of its first call are kept: weights, moments and targets must stay the tensors they are."""
    eager, compiled = build(algo), build(algo)
    compiled.compile(backend=checks.GRAPHS)
    checks.run(eager, 4)
    checks.run(compiled, 2, seed=50)
    compiled.load_state_dict(eager.state_dict())
    for step in range(4, 8):
        for learner in (eager, compiled):
            learner.update(checks.random_batch(step), global_step=step)
    assert checks.difference(eager, compiled) < 1e-5


def test_learners_of_one_process_do_not_share_a_limit(fresh_compiler: None) -> None:
    """Dynamo gives up on code that was traced too often; a loop over many learners is not such code."""
    with torch._dynamo.config.patch(recompile_limit=2):
        for width in (8, 16, 24):
            learner = BC(checks.model(MLPSACModel, hidden_sizes=(width,)))
            learner.compile(backend="aot_eager")
            learner.update(checks.random_batch(0), global_step=0)
    assert graphs() == 3


def test_learners_of_one_process_keep_their_own_graphs(fresh_compiler: None) -> None:
    """Of equal shapes and classes, updated in turn: each has its own weights and settings."""
    pairs = []
    for seed, gamma in ((0, 0.9), (1, 0.5)):
        eager, compiled = (
            SAC(checks.model(MLPSACModel, seed, hidden_sizes=(16,)), seed=seed, gamma=gamma) for _ in range(2)
        )
        compiled.compile(backend="aot_eager")
        pairs.append((eager, compiled))
    for step in range(4):
        for learner in (learner for pair in pairs for learner in pair):
            learner.update(checks.random_batch(step), global_step=step)
    for eager, compiled in pairs:
        assert checks.difference(eager, compiled) < 1e-3
    assert checks.difference(pairs[0][1], pairs[1][1]) > 1e-2


@pytest.mark.parametrize(
    ("setting", "updates_left", "stored", "expected"),
    [
        ("auto", compiling.WORTHWHILE_UPDATES, None, True),
        ("auto", compiling.WORTHWHILE_UPDATES - 1, None, False),
        (True, 1, None, True),
        (False, 10**6, None, False),
        ("auto", 1, True, True),  # a resumed run keeps its mode: results differ in rounding
        (True, 10**6, False, False),
    ],
)
def test_who_decides_whether_a_run_is_compiled(
    setting: str | bool,
    updates_left: int,
    stored: bool | None,
    expected: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(compiling, "missing_for_compiling", lambda device: None)
    learner = build("bc")
    assert compiling.apply_compile(learner, setting, updates_left, stored) is expected
    assert learner.compiled is expected


@pytest.mark.parametrize(
    ("lacking", "message"),
    [("compiler", "no C\\+\\+ compiler was found"), ("headers", "the header files of Python were not found")],
)
def test_a_run_goes_on_uncompiled_where_it_must(
    lacking: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler" if lacking == "compiler" else sys.executable)
    if lacking == "headers":
        monkeypatch.setattr(compiling.sysconfig, "get_path", lambda name: str(tmp_path))
    config = tiny_config("bc", tmp_path, algo_kwargs={"compile": True})
    with pytest.warns(UserWarning, match=f"{message}: updates run uncompiled") as caught:
        assert train(config).metrics["gradient_steps"] == 40
    assert len(caught) == 1


def test_devices_that_cannot_be_compiled_for() -> None:
    assert compiling.missing_for_compiling("mps") == "updates cannot be compiled for mps devices"


MEMORY = """
import gc, json, os, sys
import torch
import learner_checks
from test_compile import build

torch.set_num_threads(1)
batches = [learner_checks.random_batch(seed) for seed in range(16)]
kept = []

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20

def run(learner, mode, count):
    for step in range(count):
        result = learner.update(batches[step % len(batches)], global_step=step)
        if step % 100 == 0:
            dict(result.metrics)
        if mode == "leaking":
            kept.append(learner.actor_loss(batches[0]))
    gc.collect()
    return resident(), len(gc.get_objects())

for algo, mode in (("sac", "eager"), ("bc", "compiled"), ("bc", "leaking")):
    learner = build(algo)
    if mode == "compiled":
        learner.compile(backend="aot_eager")
    before, after = run(learner, mode, 500), run(learner, mode, 1500)
    print(json.dumps({"mebibytes": after[0] - before[0], "objects": after[1] - before[1]}))
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="needs the memory figures of Linux")
def test_memory_does_not_grow() -> None:
    """Nor do objects, over 1,500 updates in a process of their own; a graph kept per update is noticed."""
    here = Path(__file__).parents[1] / "support"
    folders = (Path(__file__).parent, here, here.parents[1] / "src")
    paths = {"PYTHONPATH": os.pathsep.join(map(str, folders))}
    done = subprocess.run(
        [sys.executable, "-c", MEMORY],
        capture_output=True,
        text=True,
        env=os.environ | paths | {"OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    *grown, leaking = map(json.loads, done.stdout.splitlines())
    assert len(grown) == 2
    for each in grown:
        assert each["mebibytes"] < 6.0 and each["objects"] < 500, each
    assert leaking["mebibytes"] > 12.0 and leaking["objects"] >= 1500, leaking
