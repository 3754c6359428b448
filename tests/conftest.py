"""Settings that every test shares."""

import gc
import os
import sys

import pytest

# Test modules take longer to compile than to import: what is compiled is kept, here and by the processes that
# tests start, also where the environment asks for the opposite.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)


def pytest_configure() -> None:
    """Nothing that a test writes has to outlive a power cut: it does not wait for the disk."""
    os.fsync = lambda descriptor: None


def pytest_collection_finish() -> None:
    """What is imported by now stays: the garbage collector need not look at it again after every test."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


@pytest.fixture(autouse=True)
def one_torch_thread() -> None:
    """Keep torch on one thread: small networks gain nothing from more, and test workers share the cores.

    Torch is not imported here, so that tests about light imports stay light.
    """
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def no_pictures(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two thirds of a tiny run's time is its learning curve: drawn only for tests marked `pictures`."""
    training = sys.modules.get("rl_training.runs.train")
    if training is not None and request.node.get_closest_marker("pictures") is None:
        monkeypatch.setattr(training, "plot_learning_curve", lambda run_dir: None)


REGISTRIES = {
    "core.registry": "ALGORITHMS",
    "config.data": "FORMATS",
    "models.networks": "NETWORKS",
    "policies.policy": "ACTORS MEMORIES",
    "data.fields": "FIELDS",
}


@pytest.fixture(autouse=True)
def lists_forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it, so that no other test on its worker meets it."""
    for module, names in REGISTRIES.items():
        loaded = sys.modules.get(f"rl_training.{module}")
        for registry in [getattr(loaded, name) for name in names.split()] if loaded else []:
            for entries in ("_parts", "_packages"):
                monkeypatch.setattr(registry, entries, dict(getattr(registry, entries)))


@pytest.fixture
def fake_algorithms(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake algorithms are registered for one test.

    No installed plug-in is looked for: that takes longer than the rest of such a run.
    """
    from fake_algorithm import BESIDE, OFFLINE, ONLINE, Level
    from rl_training.algorithms import register_algorithm
    from rl_training.policies.policy import register_actor

    monkeypatch.setattr("rl_training.core.registry.entry_points", lambda group: ())
    register_actor(Level)
    for recipe in (OFFLINE, ONLINE, BESIDE):
        register_algorithm(recipe)
