"""Metrics of a run: files, TensorBoard, trackers."""

from __future__ import annotations

import contextlib
import errno
import io
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.image import imread
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fake_runs import fake_run
from helpers import ROOT, tiny_config, train
from rl_training.core.errors import ConfigError, RunFailed, UserError
from rl_training.core.files import write_json_atomic, write_text_atomic
from rl_training.core.version import VERSION, library_versions
from rl_training.experiment.config import load_config
from rl_training.policies.export.card import SeedScore
from rl_training.runs import tracking
from rl_training.runs.directory import (
    config_hash,
    create_run_dir,
    sister_scores,
    summarize_run,
    write_summary,
)
from rl_training.runs.plots import plot_learning_curve
from rl_training.runs.resume import resume_training
from rl_training.runs.tracking import (
    ROW_KEYS,
    GuardedSink,
    JsonLinesSink,
    Kind,
    MetricsLogger,
    TensorBoardSink,
    open_trackers,
    read_metrics,
    tag_of,
)
from rl_training.runs.train import combine
from rl_training.runtime.callbacks import TrainResult


def test_run_directories_never_collide(tmp_path: Path) -> None:
    names = [create_run_dir(tmp_path / "a" / "b", "sac_Pendulum-v1").name for _ in range(3)]
    assert names == ["sac_Pendulum-v1", "sac_Pendulum-v1-2", "sac_Pendulum-v1-3"]
    assert (tmp_path / "a" / "b" / names[1] / "checkpoints").is_dir()
    assert create_run_dir(tmp_path, "sac", "seed3").name == "sac-seed3"


def test_run_directory_name_is_safe_as_a_path(tmp_path: Path) -> None:
    run_dir = create_run_dir(tmp_path, "sac_my_envs:Sub/Task v0", "../x")
    assert run_dir.parent == tmp_path
    assert run_dir.name == "sac_my_envs-Sub-Task-v0-..-x"


@pytest.mark.parametrize("inside", ["", "deeper"])
def test_output_directory_that_cannot_be_written_is_named(tmp_path: Path, inside: str) -> None:
    blocker = tmp_path / "runs"
    blocker.write_text("a file where the directory should be")
    with pytest.raises(
        UserError, match=r"output_dir .*runs.* cannot be written: .*; name a directory"
    ) as caught:
        create_run_dir(blocker / inside, "sac")
    assert "\n" not in str(caught.value)


def test_json_files_are_strict_and_replaced_whole(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    value = {"a": float("nan"), "b": [np.float32(0.5), (float("inf"), 2)], "c": {"d": torch.tensor(3)}}
    write_json_atomic(path, value)
    assert json.loads(path.read_text()) == {"a": None, "b": [0.5, [None, 2]], "c": {"d": 3}}
    write_text_atomic(path, "ünï")
    assert path.read_text(encoding="utf-8") == "ünï"
    assert list(tmp_path.iterdir()) == [path]


def test_full_disk_keeps_the_old_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "config.yaml"
    write_text_atomic(path, "old")

    def full_disk(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(UserError, match="No space left on device"):
        write_text_atomic(path, "new")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_summary_says_what_ran_how_long_and_with_which_versions(tmp_path: Path) -> None:
    config = {"algo": "sac", "env_id": "Pendulum-v1", "seed": 3, "algo_kwargs": {"gamma": 0.9}}
    summary = summarize_run(
        config,
        {"global_step": 10, "eval_return_mean": float("nan")},
        stop_reason="finished",
        started_at=1_700_000_000.0,
        finished_at=1_700_000_012.5,
    )
    read = json.loads(write_summary(tmp_path, summary).read_text())
    assert read["metrics"] == {"global_step": 10, "eval_return_mean": None}
    assert (read["seed"], read["stop_reason"]) == (3, "finished")
    assert read["timing"] == {
        "started": "2023-11-14T22:13:20+00:00",
        "finished": "2023-11-14T22:13:32+00:00",
        "seconds": 12.5,
    }
    assert read["config_hash"] == config_hash(dict(reversed(config.items())))
    assert read["config_hash"] != config_hash(config | {"algo_kwargs": {"gamma": 0.91}})
    assert read["versions"] == library_versions()
    assert read["versions"]["torch"] == torch.__version__
    assert read["versions"]["rl_training"] == VERSION
    assert set(read["versions"]) == {"python", "torch", "numpy", "gymnasium", "rl_training"}


def log_steps(run_dir: Path, steps: range, resume_from_step: int | None = None, offset: float = 0.0) -> None:
    with MetricsLogger(run_dir, resume_from_step=resume_from_step) as logger:
        for step in steps:
            logger.log(step, {"critic_loss": step + offset}, "train")


def test_rows_hold_step_kind_time_and_metrics(tmp_path: Path) -> None:
    with MetricsLogger(tmp_path) as logger:
        logger.log(5, {"critic_loss": torch.tensor(0.25), "entropy": np.float64(2.0), "updates": 7})
        logger.log(5, {"eval_return_mean": float("nan"), "eval_return_std": float("inf"), "x": None}, "eval")
        assert len(read_metrics(tmp_path)) == 2, "rows are readable while the run goes on"
    first, second = read_metrics(tmp_path)
    assert first.pop("time") > 1.7e9
    assert first == {"step": 5, "kind": "train", "critic_loss": 0.25, "entropy": 2.0, "updates": 7}
    assert second["eval_return_mean"] is second["eval_return_std"] is second["x"] is None
    assert "NaN" not in (tmp_path / "metrics.jsonl").read_text()
    with pytest.raises(ValueError, match="must not be called 'time'"), MetricsLogger(tmp_path) as logger:
        logger.log(6, {"time": 1.0})


def test_resume_drops_the_rows_that_will_be_repeated(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 8))
    log_steps(tmp_path, range(5, 9), resume_from_step=4, offset=0.5)
    rows = [(row["step"], row["critic_loss"]) for row in read_metrics(tmp_path)]
    assert rows == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.5), (6, 6.5), (7, 7.5), (8, 8.5)]


def test_files_of_one_moment_and_of_a_clock_set_back_follow_each_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for now in (1_794_994_373_036, 1_794_994_373_036, 1_794_994_000_000):
        monkeypatch.setattr("time.time_ns", lambda now=now: now * 1_000_000)
        log_steps(tmp_path, range(1, 3))
    names = sorted(path.name for path in tmp_path.glob("events.*"))
    assert names == [f"events.out.tfevents.{1_794_994_373_036 + more}" for more in range(3)]


@pytest.mark.parametrize("resume_from_step", [None, 3])
def test_half_written_last_line_is_forgotten(tmp_path: Path, resume_from_step: int | None) -> None:
    log_steps(tmp_path, range(1, 4))
    path = tmp_path / "metrics.jsonl"
    with path.open("a") as file:
        file.write('{"step": 4, "kind": "tra')
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2, 3]
    log_steps(tmp_path, range(4, 6), resume_from_step=resume_from_step)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["step"] for row in lines] == [1, 2, 3, 4, 5]


def test_unfinished_line_at_every_length_is_tolerated(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 4))
    path = tmp_path / "metrics.jsonl"
    content = path.read_bytes()
    for length in range(len(content)):
        path.write_bytes(content[:length])
        assert len(read_metrics(tmp_path)) == content[:length].count(b"}")


def test_run_without_metrics_has_no_rows(tmp_path: Path) -> None:
    assert read_metrics(tmp_path) == []


def test_metrics_that_cannot_be_written_stop_the_run(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").mkdir()
    with pytest.raises(RunFailed, match=r"cannot write .*metrics\.jsonl: .*; free space and resume"):
        MetricsLogger(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no device that is always full")
def test_full_disk_stops_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def open_full_device(path: Path, mode: str, buffering: int) -> io.FileIO:
        return io.FileIO("/dev/full", "w")

    monkeypatch.setattr(Path, "open", open_full_device)
    for sink in (JsonLinesSink(tmp_path / "metrics.jsonl", None), TensorBoardSink(tmp_path, None)):
        with pytest.raises(RunFailed, match="No space left on device; free space and resume"):
            sink.write(1, {"loss": 1.0}, "train")
        sink.close()


def read_events(run_dir: Path) -> dict[str, list[tuple[int, float]]]:
    events = EventAccumulator(str(run_dir))
    events.Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)] for tag in events.Tags()["scalars"]
    }


def test_tensorboard_reads_the_events(tmp_path: Path) -> None:
    with MetricsLogger(tmp_path) as logger:
        logger.log(1, {"critic_loss": 0.5, "broken": float("nan")}, "train")
        logger.log(2, {"critic_loss": 0.25}, "train")
        logger.log(2, {"eval_return_mean": -150.0}, "eval")
        expected = {"train/critic_loss": [(1, 0.5), (2, 0.25)], "eval/return_mean": [(2, -150.0)]}
        assert read_events(tmp_path) == expected, "events are on the disk before the run ends"


def test_tensorboard_hides_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    log_steps(tmp_path, range(1, 8))
    log_steps(tmp_path, range(5, 7), resume_from_step=4, offset=0.5)
    curve = read_events(tmp_path)["train/critic_loss"]
    assert curve == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 4.0), (5, 5.5), (6, 6.5)]


def draw(run_dir: Path, rows: list[tuple[int, dict[str, Any], Any]]) -> np.ndarray[Any, Any]:
    with MetricsLogger(run_dir) as logger:
        for row in rows:
            logger.log(*row)
    path = plot_learning_curve(run_dir)
    assert path == run_dir / "learning_curve.png"
    assert path.read_bytes().startswith(b"\x89PNG")
    return np.asarray(imread(path))[..., :3]


def colors(image: np.ndarray[Any, Any]) -> int:
    return len(np.unique((image * 255).astype(int) @ [65536, 256, 1]))


def blue_share(image: np.ndarray[Any, Any]) -> float:
    return float((image[..., 2] - image[..., 0] > 0.05).mean())


def test_learning_curve_shows_returns_with_a_band_and_losses(tmp_path: Path) -> None:
    evaluations = [
        (step, {"eval_return_mean": step - 1000.0, "eval_return_std": 100.0}, "eval")
        for step in range(0, 1000, 100)
    ]
    losses = [(step, {"critic_loss": 5.0, "actor_loss": 300.0}, "train") for step in range(0, 1000, 100)]
    write_text_atomic(tmp_path / "config.yaml", "algo: sac\nenv_id: Pendulum-v1\nseed: 3\n")
    both = draw(tmp_path, evaluations + losses)
    assert both.shape[1] == 1200 and both.shape[0] > 900
    assert colors(both) > 50
    assert blue_share(both) > 0.02, "the band is a visible area"

    only_losses = tmp_path / "losses"
    only_losses.mkdir()
    image = draw(only_losses, losses)
    assert image.shape[0] < both.shape[0]
    assert blue_share(image) < 0.005


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [(1, {"eval_return_mean": None, "eval_return_std": None}, "eval")],
        [(1, {"eval_return_mean": -3.0, "eval_return_std": 0.0}, "eval")],
        [(1, {"critic_loss": 0.0, "actor_loss": 0.0}, "train")],
        [
            (1, {"critic_loss": float("nan")}, "train"),
            (2, {"critic_loss": 1e30, "actor_loss": -1e-30}, "train"),
        ],
    ],
)
def test_learning_curve_of_a_run_with_little_to_show(tmp_path: Path, rows: list[Any]) -> None:
    (tmp_path / "config.yaml").write_text("algo: [broken")
    assert colors(draw(tmp_path, rows)) > 5


def test_learning_curve_leaves_global_matplotlib_state_alone(tmp_path: Path) -> None:
    pyplot_before = "matplotlib.pyplot" in sys.modules
    out = plot_learning_curve(tmp_path, tmp_path / "deep" / "curve.png")
    assert out.is_file()
    assert ("matplotlib.pyplot" in sys.modules) == pyplot_before


def test_learning_curve_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "learning_curve.png").mkdir()
    with pytest.raises(UserError, match=r"cannot write .*learning_curve\.png"):
        plot_learning_curve(tmp_path)


def test_of_runs_with_one_seed_the_first_one_counts(tmp_path: Path) -> None:
    """A card tells every seed once: a repetition of it is no further sample, and other settings no sister."""
    for name, seed, mean in (("a", 0, -1.0), ("b", 1, -2.0), ("c", 0, -3.0)):
        told = {"eval_return_mean": mean, "eval_return_std": 0.5, "eval_episodes": 4}
        fake_run(tmp_path, seed=seed, name=name, summary={"seed": seed, "metrics": told})
    fake_run(tmp_path, seed=2, name="d", settings={"gamma": 0.9}, summary={"seed": 2, "metrics": told})
    assert sister_scores(tmp_path / "c") == [SeedScore(0, -1.0, 0.5, 4), SeedScore(1, -2.0, 0.5, 4)]


def test_several_seeds_have_an_estimated_value_where_each_has_one() -> None:
    def result(value: float | None) -> TrainResult:
        return TrainResult(Path("run"), None, {"eval_return_mean": None, "judge_value": value})

    both = combine([result(1.0), result(3.0)]).metrics
    assert (both["judge_value"], both["judge_value_std"]) == (2.0, 1.0)
    assert "judge_value_std" not in combine([result(1.0), result(None)]).metrics


# ---- trackers in their offline modes: the numbers arrive, a resumed run stays one run, trouble stays outside


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
    for _ in range(100):  # a process of its own writes it
        if b"train/" in (written := first.read_bytes()):
            break
        time.sleep(0.1)
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
