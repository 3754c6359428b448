"""Trackers in their offline modes: the numbers arrive, a resumed run stays one run, trouble stays outside."""

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import ROOT, tiny_config, train
from rl_training.core.errors import ConfigError
from rl_training.experiment.config import load_config
from rl_training.runs import tracking
from rl_training.runs.resume import resume_training
from rl_training.runs.tracking import ROW_KEYS, GuardedSink, Kind, open_trackers, read_metrics, tag_of

# MLflow's own use of its database library; the versions are pinned together.
KINDS: tuple[Kind, ...] = ("train", "eval", "collect")
pytestmark = pytest.mark.filterwarnings("ignore:.*noload.*")


@pytest.fixture(autouse=True)
def no_account(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever the user's shell says, nothing is sent from here; W&B's service ends with the test."""
    for name in ("WANDB_MODE", "WANDB_PROJECT", "MLFLOW_TRACKING_URI", "MLFLOW_EXPERIMENT_NAME"):
        monkeypatch.delenv(name, raising=False)
    yield
    wandb = sys.modules.get("wandb")
    if wandb is not None:
        wandb.teardown()


def identities(run_dir: Path) -> dict[str, str]:
    known: dict[str, str] = json.loads((run_dir / "trackers.json").read_text())
    return known


@pytest.mark.slow
def test_wandb_receives_the_metrics_offline_and_a_resumed_run_keeps_its_id(tmp_path: Path) -> None:
    result = train(tiny_config("bc", tmp_path, trackers=["wandb"]))
    (first,) = (result.run_dir / "wandb").glob("offline-run-*/run-*.wandb")
    written = first.read_bytes()
    tags = {tag_of(row["kind"], name) for row in read_metrics(result.run_dir) for name in row}
    for tag in tags - {tag_of(kind, name) for kind in KINDS for name in ROW_KEYS} | {"global_step"}:
        assert tag.encode() in written, tag
    known = identities(result.run_dir)
    assert first.stem == f"run-{known['wandb']}"
    resume_training(result.run_dir, total_timesteps=60, tracker_names=["wandb"], quiet=True)
    assert identities(result.run_dir) == known
    files = list((result.run_dir / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 2 and {file.stem for file in files} == {first.stem}


@pytest.mark.slow
def test_mlflow_receives_the_metrics_and_a_resumed_run_goes_on(tmp_path: Path) -> None:
    from mlflow.tracking import MlflowClient

    result = train(tiny_config("bc", tmp_path, trackers=["mlflow"]))
    plain = train(tiny_config("bc", tmp_path / "plain"))
    assert result.metrics["eval_return_mean"] == plain.metrics["eval_return_mean"], "learning is the same"
    resume_training(result.run_dir, total_timesteps=60, tracker_names=["mlflow"], quiet=True)
    client = MlflowClient(tracking_uri=f"sqlite:///{result.run_dir / 'mlflow.db'}")
    run = client.get_run(identities(result.run_dir)["mlflow"])
    assert run.info.status == "FINISHED" and run.info.run_name == result.run_dir.name
    assert run.data.params["algo"] == "bc" and run.data.params["algo_kwargs.batch_size"] == "16"
    rows = [row for row in read_metrics(result.run_dir) if row["kind"] == "eval"]
    history = client.get_metric_history(run.info.run_id, "eval/return_mean")
    assert [(point.step, point.value) for point in history] == [
        (row["step"], row["eval_return_mean"]) for row in rows
    ]
    assert [row["step"] for row in rows] == [40, 60]


TELLTALE = """
import sys, time
from pathlib import Path
from helpers import tiny_config, train
train(tiny_config("bc", Path(sys.argv[1]), total_timesteps=10, trackers=["wandb", "mlflow"]))
time.sleep(2)  # what is sent is sent by a thread
"""


@pytest.mark.slow
def test_nothing_asks_the_network_for_anything(tmp_path: Path) -> None:
    """Every request over HTTP goes through a proxy of ours, which nobody may call."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        address = "http://{}:{}".format(*proxy.getsockname())
        told = {"HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"}
        # MLflow spares machines that run tests
        tests = {"CI", "PYTEST_CURRENT_TEST", "GITHUB_ACTIONS", "MLFLOW_DISABLE_TELEMETRY", "NO_PROXY"}
        kept = {name: text for name, text in os.environ.items() if name not in tests}
        path = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests" / "support")])
        done = subprocess.run(
            [sys.executable, "-c", TELLTALE, str(tmp_path / "runs")],
            env={**kept, **dict.fromkeys(told, address), "HOME": str(tmp_path), "PYTHONPATH": path},
            capture_output=True,
            text=True,
            timeout=200,
        )
        proxy.settimeout(0)
        called = []
        with contextlib.suppress(BlockingIOError):
            while True:
                called.append(proxy.accept()[0].recv(200))
    assert (done.returncode, called) == (0, []), done.stderr
    assert not (tmp_path / ".config" / "mlflow").exists()


def test_a_tracker_that_fails_is_left_out_once(tmp_path: Path) -> None:
    class Broken:
        written = 0

        def __init__(self, run_dir: Path, config: Any) -> None:
            pass

        def write(self, step: int, metrics: Any, kind: str) -> None:
            Broken.written += 1
            raise OSError("no route to host\nand a long story")

        def close(self) -> None:
            raise AssertionError("not called any more")

    sink = GuardedSink("wandb", Broken, tmp_path, {})
    with pytest.warns(UserWarning, match=r"^tracker wandb is left out .*: no route to host$"):
        sink.write(1, {"loss": 1.0}, "train")
    sink.write(2, {"loss": 1.0}, "train")
    sink.close()
    assert Broken.written == 1


def test_an_unreachable_server_does_not_stop_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("where a directory would have to be")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path / 'file' / 'mlflow.db'}")
    with pytest.warns(UserWarning, match="tracker mlflow is left out"):
        result = train(tiny_config("bc", tmp_path, trackers=["mlflow"]))
    assert result.metrics["global_step"] == 40


def test_what_is_missing_or_mistyped_is_said_before_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"trackers must be a list of 'wandb', 'mlflow', got \['wnadb'\]"):
        load_config("sac/pendulum", ["trackers=[wnadb]"])
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ConfigError, match=r"got 'wandb': in a checkout .* pip install \"\.\[wandb\]\""):
        open_trackers(["wandb"], tmp_path, {})


def test_what_is_longer_than_a_parameter_of_mlflow_is_cut(tmp_path: Path) -> None:
    found = dict(tracking._flat({"a": {"b": "x" * 600}, "c": {}, "d": 1}))
    assert found == {"a.b": "x" * 500, "c": "{}", "d": "1"}
