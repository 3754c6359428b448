"""Sweeps: what a file stands for, what a directory tells, and that nothing is lost, mixed or changed."""

import io
import json
import multiprocessing
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console

from helpers import assert_same_tree, tiny_config
from rl_training.cli import main
from rl_training.config.yaml import dump_yaml
from rl_training.core.checkpoints import load_checkpoint
from rl_training.core.errors import ConfigError, RunFailed
from rl_training.core.files import write_json_atomic
from rl_training.runs.directory import create_run_dir, directory_name, lock_run
from rl_training.runs.tracking import read_metrics
from rl_training.runtime.callbacks import Callback, Run
from rl_training.sweeps import workers as local
from rl_training.sweeps.plan import (
    SweepConfig,
    Task,
    expand,
    load_sweep_config,
    plan_sweep,
    run_status,
    stacking_pays,
    store_groups,
)
from rl_training.sweeps.sweep import SweepTable, run_sweep
from rl_training.sweeps.workers import call_on_ray, perform, run_local, run_on_ray


def sweep_values(**changes: Any) -> dict[str, Any]:
    """A sweep of tiny runs; 40 steps, a checkpoint every 10."""
    base = tiny_config("bc", Path("unused"), checkpoint_interval=10).to_dict()
    return {"base": base, "seeds": [0, 1], "stack": False, **changes}


def planned(output_dir: Path, **changes: Any) -> list[Task]:
    return plan_sweep(SweepConfig.build(sweep_values(**changes)), output_dir)


def learners(tasks: list[Task]) -> list[Any]:
    return [load_checkpoint(run.run_dir)["learner"] for task in tasks for run in task.runs]


class CrashAt(Callback):
    """Stands for anything that ends a run without warning."""

    def __init__(self, step: int, seed: int = 0) -> None:
        self.step, self.seed = step, seed

    def on_step_end(self, run: Run) -> None:
        if run.global_step == self.step and run.config.seed == self.seed:
            raise OSError("the disk is gone")


def test_every_variant_meets_every_grid_point() -> None:
    sweep = SweepConfig.build(
        sweep_values(
            grid={"algo_kwargs.batch_size": [8, 16], "total_timesteps": [30]},
            variants=[
                {"algo_kwargs.hidden_sizes": [8, 8]},
                {"name": "wide", "algo_kwargs.hidden_sizes": [32]},
            ],
        )
    )
    found = expand(sweep)
    assert list(found) == [
        "hidden_sizes=8x8-batch_size=8",
        "hidden_sizes=8x8-batch_size=16",
        "wide-batch_size=8",
        "wide-batch_size=16",
    ]
    config = found["wide-batch_size=8"]
    assert config.algo_kwargs["hidden_sizes"] == [32] and config.algo_kwargs["batch_size"] == 8
    assert config.total_timesteps == 30
    assert config.algo_kwargs["dataset_size"] == 220, "the rest of the base stays"


def test_the_packaged_sweep_is_three_algorithms_with_three_seeds(tmp_path: Path) -> None:
    tasks = plan_sweep(load_sweep_config("pendulum"), tmp_path)
    runs = [run for task in tasks for run in task.runs]
    assert sorted({run.config.algo for run in runs}) == ["iql", "sac", "td3_bc"]
    assert len(runs) == len({run.run_dir for run in runs}) == 9
    assert [len(task.runs) for task in tasks] == [3, 3, 3], "small networks: seeds are stacked"


def test_all_mistakes_are_reported_together() -> None:
    with pytest.raises(ConfigError) as empty:
        SweepConfig.build(
            {**sweep_values(), "grid": {"device": [], "algo": "sac"}, "seeds": [1, 1], "sedes": 3}
        )
    assert sorted(str(empty.value).splitlines()) == [
        "grid.algo must be a list of at least one value, got 'sac'",
        "grid.device must be a list of at least one value, got []",
        "sedes is not a known key (did you mean 'seeds'?)",
        "seeds must be different seeds, at least one, got [1, 1]",
    ]
    variants = [
        {"name": "a"},
        {"name": "a"},
        {"name": "b", "algo_kwargs.btach_size": 3},
        {"name": "c", "algo": "x"},
    ]
    with pytest.raises(ConfigError) as wrong:
        expand(SweepConfig.build(sweep_values(variants=variants)))
    lines = str(wrong.value).splitlines()
    assert lines[0] == "run name 'a' is used twice; give each of the variants a `name` of its own"
    assert lines[1] == "b: algo_kwargs.btach_size is not a known key (did you mean 'batch_size'?)"
    assert len(lines) == 3 and lines[2].startswith("c: ")


def test_seeds_of_the_config_are_trained_unless_the_sweep_names_some(tmp_path: Path) -> None:
    base = sweep_values()["base"]
    for own, wanted in (({"seed": 7}, [7]), ({"seeds": [3, 4]}, [3, 4])):
        tasks = planned(tmp_path, base={**base, **own}, seeds=None)
        assert [run.config.seed for task in tasks for run in task.runs] == wanted
    varied = planned(tmp_path, seeds=None, grid={"seed": [5, 6]})
    assert [run.config.seed for task in varied for run in task.runs] == [5, 6]


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"grid": {"algo_kwargs.gamma": [0.9]}, "variants": [{"algo_kwargs.gamma": 0.8}]}, "by grid and by"),
        ({"grid": {"output_dir": ["a", "b"]}}, "output_dir must not be varied"),
        ({"variants": [{"seed": 5}], "seeds": [1]}, "seed must not be varied where the sweep has seeds"),
        ({"metric": "critic_loss"}, "metric must be auto, judge_score, none or begin with eval_"),
        ({"metric": "judge_value"}, "metric must be auto, judge_score, none or begin with eval_"),
    ],
)
def test_what_a_sweep_would_ignore_is_refused(changes: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError, match=complaint):
        SweepConfig.build(sweep_values(**changes))


def test_a_missing_file_names_the_packaged_sweeps() -> None:
    with pytest.raises(ConfigError, match=r"neither a file nor a packaged sweep .did you mean 'pendulum'"):
        load_sweep_config("pendlum")


@pytest.mark.parametrize(
    ("name", "directory"),
    [("a/b c", "a-b-c"), ("ALE/Pong-v5", "ALE-Pong-v5"), ("..x--", "x"), ("ünï=1", "n-=1"), ("/", "run")],
)
def test_names_follow_the_rule_of_run_directories(tmp_path: Path, name: str, directory: str) -> None:
    assert create_run_dir(tmp_path, name).name == directory_name(name) == directory


def test_groups_are_kept_when_seeds_are_added(tmp_path: Path) -> None:
    first = planned(tmp_path, stack=True)
    assert [[run.name for run in task.runs] for task in first] == [["base-s0", "base-s1"]]
    store_groups(first, tmp_path)
    second = planned(tmp_path, stack=True, seeds=[0, 1, 2, 3])
    assert [[run.name for run in task.runs] for task in second] == [
        ["base-s0", "base-s1"],
        ["base-s2", "base-s3"],
    ]
    (tmp_path / "groups.json").write_text("{")
    with pytest.raises(ConfigError, match=r"groups\.json cannot be read"):
        planned(tmp_path)


def test_large_networks_and_long_runs_are_not_stacked_unasked(tmp_path: Path) -> None:
    def sizes(**changes: Any) -> list[int]:
        return [len(task.runs) for task in planned(tmp_path, stack="auto", **changes)]

    assert sizes() == [2]
    assert sizes(grid={"algo_kwargs.hidden_sizes": [[256, 256]]}) == [1, 1]
    assert sizes(grid={"total_timesteps": [1_000_000]}) == [1, 1]


@pytest.mark.slow
def test_a_crashed_run_goes_on_from_its_checkpoint_to_the_same_bits(tmp_path: Path) -> None:
    calm, disturbed = planned(tmp_path / "calm", seeds=[0]), planned(tmp_path / "disturbed", seeds=[0])
    perform(calm[0])
    (run,) = disturbed[0].runs
    assert run_status(run.run_dir).state == "new"
    with pytest.raises(OSError, match="the disk is gone"):
        perform(disturbed[0], [CrashAt(25)])
    status = run_status(run.run_dir)
    assert (status.state, status.problem) == ("crashed", "OSError: the disk is gone")
    assert "on_step_end" in json.loads((run.run_dir / "failure.json").read_text())["traceback"]
    starts = Starts()
    perform(disturbed[0], [starts])
    assert starts.steps == [20], "it went on from the checkpoint"
    assert run_status(run.run_dir).state == "done" and not (run.run_dir / "failure.json").exists()
    assert_same_tree(learners(disturbed)[0], learners(calm)[0])
    before = (run.run_dir / "summary.json").stat().st_mtime_ns
    perform(disturbed[0])
    assert (run.run_dir / "summary.json").stat().st_mtime_ns == before, "a finished run is skipped"


@pytest.mark.slow
def test_what_a_checkpoint_is_not_trusted_with_comes_from_the_sweep(tmp_path: Path) -> None:
    """Code and the keywords of windows: the file of the sweep is the user's word for them."""
    grid = {"wrappers": [["fake_world:impatient"]], "env_kwargs": [{"render_mode": "rgb_array_list"}]}
    (task,) = planned(tmp_path, seeds=[0], grid=grid)
    with pytest.raises(OSError, match="the disk is gone"):
        perform(task, [CrashAt(25)])
    starts = Starts()
    perform(task, [starts])
    assert starts.steps == [20] and run_status(task.runs[0].run_dir).state == "done"


class Starts(Callback):
    def __init__(self) -> None:
        self.steps: list[int] = []

    def on_train_start(self, run: Run) -> None:
        self.steps.append(run.global_step)


def test_a_run_without_a_checkpoint_starts_again_with_clean_metrics(tmp_path: Path) -> None:
    (task,) = planned(tmp_path, seeds=[0])
    with pytest.raises(OSError, match="gone"):
        perform(task, [CrashAt(5)])
    (task.runs[0].run_dir / "metrics.jsonl").write_text('{"step": 3, "kind": "train", "time": 0}\n')
    perform(task)
    assert 3 not in [row["step"] for row in read_metrics(task.runs[0].run_dir)]
    assert run_status(task.runs[0].run_dir).step == 40


@pytest.mark.slow
def test_a_stack_that_crashed_starts_again_as_a_stack(tmp_path: Path) -> None:
    calm, disturbed = planned(tmp_path / "calm", stack=True), planned(tmp_path / "disturbed", stack=True)
    perform(calm[0])
    with pytest.raises(OSError, match="gone"):
        perform(disturbed[0], [CrashAt(25)])
    starts = Starts()
    perform(disturbed[0], [starts])
    assert starts.steps == [0, 0]
    for ours, theirs in zip(learners(disturbed), learners(calm), strict=True):
        assert_same_tree(ours, theirs)


def test_what_is_done_of_a_stack_is_never_repeated(tmp_path: Path) -> None:
    (task,) = planned(tmp_path, stack=True)
    perform(task)
    expected = learners([task])
    first, second = (run.run_dir / "summary.json" for run in task.runs)
    before = first.stat().st_mtime_ns
    second.unlink()  # as a kill between the two summaries leaves it
    perform(task)
    assert first.stat().st_mtime_ns == before and run_status(second.parent).state == "done"
    for ours, theirs in zip(learners([task]), expected, strict=True):
        assert_same_tree(ours, theirs)


def test_a_signal_leaves_an_interrupted_run(tmp_path: Path) -> None:
    (task,) = planned(tmp_path, seeds=[0])
    perform(task)
    run_dir = task.runs[0].run_dir
    write_json_atomic(run_dir / "summary.json", {"stop_reason": "signal 15", "metrics": {}})
    assert run_status(run_dir).state == "interrupted"
    write_json_atomic(run_dir / "summary.json", {"stop_reason": "update budget reached", "metrics": {}})
    assert run_status(run_dir).state == "done"


def test_a_directory_of_something_else_is_not_touched(tmp_path: Path) -> None:
    file, out = tmp_path / "s.yaml", tmp_path / "out"
    file.write_text(dump_yaml(sweep_values()))
    first, second = (run.run_dir for task in planned(out) for run in task.runs)
    for folder in (first, second):
        folder.mkdir(parents=True)
    (first / "thesis.txt").write_text("mine")
    other = tiny_config("bc", out, checkpoint_interval=10, seed=1, algo_kwargs={"batch_size": 4})
    (second / "config.yaml").write_text(dump_yaml(other.to_dict()))
    with pytest.raises(ConfigError) as refused:
        run_sweep(file, output_dir=out, quiet=True)
    lines = str(refused.value).splitlines()
    assert lines[0] == f"{first} holds files that are not a run; give another output_dir"
    assert "holds a run with another algo_kwargs.batch_size; give" in lines[1] and len(lines) == 2
    (second / "config.yaml").write_text("algo: bc\ntotal_timesteps: 3\nformer_setting: 1\n")
    with pytest.raises(ConfigError, match=r"a run of another version .former_setting is not a known key"):
        run_sweep(file, output_dir=out, quiet=True)
    assert (first / "thesis.txt").read_text() == "mine" and sorted(out.iterdir()) == [first.parent]


def test_two_processes_never_share_a_directory(tmp_path: Path) -> None:
    with (
        lock_run(tmp_path / "run"),
        pytest.raises(RunFailed, match="in use by another process"),
        lock_run(tmp_path / "run", patience=0.2),
    ):
        raise AssertionError("claimed twice")
    with lock_run(tmp_path / "run", patience=0.0):
        assert not (tmp_path / "run").exists(), "the claim lies beside the directory"


@pytest.mark.slow
def test_a_killed_worker_is_replaced_and_a_broken_run_stops_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One sweep in worker processes: a run is killed with -9 once it has saved, another can never work."""
    monkeypatch.setattr(local, "POLL_SECONDS", 0.02)  # looks many times between the first save and the end
    grid = {"env_id": ["Pendulum-v1", "Nowhere-v0"], "total_timesteps": [1000]}
    values = sweep_values(seeds=[0], grid=grid)
    tasks = plan_sweep(SweepConfig.build(values), tmp_path)
    good, broken = tasks[0].runs[0], tasks[1].runs[0]
    killed: list[int] = []

    def kill_once(running: set[str]) -> None:
        if not killed and running == {good.name} and run_status(good.run_dir).can_resume:
            (worker,) = multiprocessing.active_children()
            worker.kill()
            killed.append(int(worker.pid or 0))

    assert run_local(tasks, workers=1, retries=1, watch=kill_once, log_dir=tmp_path / "logs") is None
    assert len(killed) == 1 and run_status(good.run_dir).state == "done"
    status = run_status(broken.run_dir)
    assert status.state == "crashed" and "Nowhere" in str(status.problem)
    assert (tmp_path / "logs" / f"{broken.name}.log").read_text().count("error: ") == 2, "tried twice"


def test_the_command_skips_what_is_done_and_says_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file, out = tmp_path / "s.yaml", tmp_path / "out"
    file.write_text(dump_yaml(sweep_values()))
    for task in planned(out):
        perform(task)
    assert main(["sweep", str(file), "-o", str(out)]) == 0
    assert capsys.readouterr().out.count(" done ") == 2
    assert main(["sweep", str(file), "--address", "auto"]) == 2
    assert "without --backend ray" in capsys.readouterr().err
    (planned(out)[1].runs[0].run_dir / "summary.json").unlink()
    monkeypatch.setattr("rl_training.sweeps.sweep.run_local", lambda *_, **__: None)
    assert main(["sweep", str(file), "-o", str(out)]) == 1
    assert "error: base-s1 is not done: it ended without a reason" in capsys.readouterr().err


def test_the_table_shows_what_matters_first(tmp_path: Path) -> None:
    tasks = planned(tmp_path, seeds=[0, 1, 2])
    perform(tasks[0])
    console = Console(width=100, height=8, record=True, force_terminal=True, file=io.StringIO())
    with SweepTable([task.runs[0] for task in tasks], console=console) as table:
        table.watch({"base-s1"})
        console.print(table.render(table.rows({"base-s1"})))
    text = console.export_text()
    assert "3 runs: 1 running, 1 waiting, 1 done" in text and "… and 1 more" in text
    plain = Console(width=100, record=True, file=io.StringIO())
    SweepTable([tasks[0].runs[0]], console=plain).watch(set())
    assert plain.export_text().startswith("base-s0: done, return -")


@pytest.mark.slow
def test_ray_gets_the_same_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray itself is replaced here; `benchmarks/faults/sweep_kill.py --backend ray` runs the real one."""
    calls: dict[str, Any] = {}

    def remote(**options: Any) -> Callable[[Callable[[str], None]], Any]:
        calls["options"] = options
        return lambda function: SimpleNamespace(remote=lambda text: function(text) or object())

    fake = SimpleNamespace(
        init=lambda **options: calls.setdefault("init", options),
        remote=remote,
        wait=lambda references, **_: (references, []),
        get=lambda reference: None,
        shutdown=lambda: calls.setdefault("ended", True),
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    local, on_ray = planned(tmp_path / "local"), planned(tmp_path / "ray")
    for task in local:
        perform(task)
    assert run_on_ray(on_ray, address=None, retries=2) is None
    assert calls["options"] == {"num_cpus": 1, "max_retries": 2, "retry_exceptions": True}
    assert calls["init"]["address"] == "local" and calls["ended"]
    for ours, theirs in zip(learners(on_ray), learners(local), strict=True):
        assert_same_tree(ours, theirs)


def test_calls_on_ray_answer_by_their_place_and_failures_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def half(number: int, text: str) -> float:
        if number % 2:
            raise ValueError(f"{text}\n{number} is odd")
        return number / 2

    def get(reference: tuple[int, str]) -> float:
        return half(*reference)

    fake = SimpleNamespace(
        init=lambda **_: None,
        remote=lambda **_: lambda function: SimpleNamespace(remote=lambda *arguments: arguments),
        wait=lambda references, **_: (references[-1:], references[:-1]),  # the last one ends first
        get=get,
        shutdown=lambda: None,
    )
    monkeypatch.setitem(sys.modules, "ray", fake)
    left: list[list[int]] = []
    calls = [(4, "a"), (3, "b"), (8, "c")]
    found = call_on_ray(half, calls, address=None, retries=0, watch=lambda each: left.append(list(each)))
    assert found.answers == {0: 2.0, 2: 4.0} and found.failed == {1: "3 is odd"} and found.stopped is None
    assert left == [[0, 1, 2], [0, 1], [0], []]


def test_an_unreachable_ray_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(**_: Any) -> None:
        raise ConnectionError("Could not find any running Ray instance\nand more")

    monkeypatch.setitem(sys.modules, "ray", SimpleNamespace(init=refuse))
    with pytest.raises(ConfigError, match=r"^address must be .* got 'auto': Could not find any .* instance$"):
        run_on_ray([], address="auto", retries=0)
    with socket.socket() as taken:  # bound but not listening: a port where nobody answers
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConfigError, match=rf"^address must be .* got '{address}': .*Connection refused$"):
            run_on_ray([], address=address, retries=0)
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r'needs the ray package: .* pip install "\.\[sweep\]"'):
        run_on_ray([], address=None, retries=0)


@pytest.mark.parametrize(("steps", "pays"), [(100_000, True), (100_001, False)])
def test_runs_of_up_to_a_hundred_thousand_steps_are_stacked(steps: int, pays: bool, tmp_path: Path) -> None:
    assert stacking_pays(tiny_config("bc", tmp_path, total_timesteps=steps)) == pays
