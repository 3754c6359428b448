"""The command line: what each command calls, what it prints, and its exit codes.

Training itself is replaced by a recorder here, so that these tests are about the command line alone.
"""

import errno
import io
import json
import signal
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rl_training.algorithms.recipe import get_recipe
from rl_training.cli import main
from rl_training.cli.options import parse_seeds
from rl_training.core.errors import CheckpointError, ConfigError, RunFailed
from rl_training.core.spaces import FeatureNames


class Recorder:
    """Stands in for the runtime: remembers the calls and answers with a fixed result."""

    def __init__(self, run_dir: Path) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.problem: BaseException | None = None
        metrics = {
            "global_step": 10_000,
            "gradient_steps": 9_000,
            "eval_return_mean": -150.26,
            "eval_return_std": 80.0,
            "eval_episodes": 20,
            "signal": None,
        }
        checkpoint = run_dir / "checkpoints" / "step_10000.safetensors"
        self.result = SimpleNamespace(
            members=(), run_dir=run_dir, checkpoint_path=checkpoint, metrics=metrics
        )

    def answer(self, name: str, value: Any, **arguments: Any) -> Any:
        self.calls.append((name, arguments))
        if self.problem is not None:
            raise self.problem
        return value

    def train(self, config: Any, *, quiet: bool) -> Any:
        return self.answer("train", self.result, config=config, quiet=quiet)

    def evaluate_checkpoint(self, path: Path, **options: Any) -> Any:
        metrics = {"eval_return_mean": -150.0, "eval_return_std": float("nan"), "eval_episodes": 3}
        return self.answer("evaluate", metrics, path=path, **options)

    def predict_checkpoint(self, path: Path, obs: Any, **options: Any) -> Any:
        return self.answer("predict", np.asarray(obs)[..., :1] * 2, path=path, obs=np.asarray(obs), **options)

    def policy(self, path: Path) -> SimpleNamespace:
        opened = SimpleNamespace(
            predict=lambda obs: self.predict_checkpoint(path, obs),
            features=FeatureNames(),
            guard_facts=None,
            memory=None,
            counter=None,
            with_inputs=lambda **chosen: opened,
        )
        return opened

    def resume_training(self, path: Path, **options: Any) -> Any:
        return self.answer("resume", self.result, path=path, **options)


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Recorder:
    recorder = Recorder(tmp_path / "run")
    modules = {
        "rl_training.runs.train": {"train": recorder.train},
        "rl_training.runs.evaluate": {"evaluate_checkpoint": recorder.evaluate_checkpoint},
        "rl_training.runs.resume": {"resume_training": recorder.resume_training},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("rl_training.policies.files.load_policy", recorder.policy)
    return recorder


def error_lines(capsys: pytest.CaptureFixture[str]) -> list[str]:
    printed = capsys.readouterr()
    assert "Traceback" not in printed.err
    return printed.err.splitlines()


# ---- train, resume


def test_train_passes_file_overrides_and_options_to_the_manager(runtime: Recorder, tmp_path: Path) -> None:
    overrides = ["--set", "algo_kwargs.gamma=0.98", "--set", "algo_kwargs.learning_rate=1e-4"]
    options = ["--seed", "5", "--output-dir", str(tmp_path / "1e5"), "--device", "cpu"]
    assert main(["train", "--config", "sac/pendulum", *overrides, *options]) == 0
    ((name, arguments),) = runtime.calls
    config = arguments["config"]
    assert name == "train"
    assert (config.algo, config.seed, config.device) == ("sac", 5, "cpu")
    assert config.output_dir == str(tmp_path / "1e5")
    assert config.algo_kwargs["gamma"] == 0.98 and config.algo_kwargs["learning_rate"] == 1e-4


def test_train_ends_with_the_result(
    runtime: Recorder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "learning_curve.png").touch()
    assert main(["train", "-c", "sac/pendulum"]) == 0
    printed = capsys.readouterr().out
    for text in ("10,000", "9,000", "return over 20 episodes", "-150.3 ± 80.0"):
        assert text in printed
    assert "learning_curve.png" in printed.replace("\n", "")


def test_a_run_without_evaluation_prints_no_return(
    runtime: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    runtime.result.metrics.update(eval_return_mean=None, eval_return_std=None)
    assert main(["train", "-c", "sac/pendulum"]) == 0
    assert "return over" not in capsys.readouterr().out


def test_quiet_prints_only_the_run_directory(runtime: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", "-c", "sac/pendulum", "--quiet"]) == 0
    assert capsys.readouterr().out == f"{runtime.result.run_dir}\n"
    assert runtime.calls[0][1]["quiet"] is True


def test_resume_passes_the_new_total(runtime: Recorder, tmp_path: Path) -> None:
    arguments = ["--checkpoint", "runs/x", "--total-timesteps", "50", "--output-dir", str(tmp_path)]
    assert main(["resume", *arguments]) == 0
    ((name, given),) = runtime.calls
    assert name == "resume"
    assert (given["path"], given["total_timesteps"], given["output_dir"]) == (Path("runs/x"), 50, tmp_path)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("command", [["train", "-c", "sac/pendulum"], ["resume", "--checkpoint", "x"]])
def test_an_interrupted_run_says_how_to_resume(
    runtime: Recorder, capsys: pytest.CaptureFixture[str], command: list[str], number: int, code: int
) -> None:
    runtime.result.metrics["signal"] = int(number)
    assert main(command) == code
    path = runtime.result.checkpoint_path
    assert error_lines(capsys) == [f"saved {path}; resume with: rl-training resume --checkpoint {path}"]


# ---- evaluate, predict


@pytest.mark.parametrize("command", ["evaluate", "eval"])
def test_evaluate_prints_json(runtime: Recorder, capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, "--checkpoint", "runs/x", "--episodes", "3", "--device", "cpu"]) == 0
    expected = {"eval_return_mean": -150.0, "eval_return_std": None, "eval_episodes": 3}
    assert json.loads(capsys.readouterr().out) == expected
    given = {"path": Path("runs/x"), "num_episodes": 3, "device": "cpu"}
    given |= {"env": None, "wrappers": None, "env_kwargs": None, "inputs": {}}
    assert runtime.calls == [("evaluate", given)]


def predicted(runtime: Recorder, capsys: pytest.CaptureFixture[str], *arguments: str) -> Any:
    assert main(["predict", "--checkpoint", "runs/x", *arguments]) == 0
    return json.loads(capsys.readouterr().out), runtime.calls[-1][1]["obs"].tolist()


@pytest.mark.parametrize("text", ["-0.5, 0.2, 3e-1", "[-0.5, 0.2, 0.3]", "-0.5 0.2  3e-1"])
def test_predict_one_observation(runtime: Recorder, capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert predicted(runtime, capsys, "--obs", text) == ([-1.0], [-0.5, 0.2, 0.3])


ROWS = [[0.5, 0.25], [1.0, 2.0]]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("obs.json", "[[0.5, 0.25], [1, 2]]"),
        ("obs.csv", "0.5,0.25\n1,2\n"),
        ("obs.csv", "position,speed\n0.5,2.5e-1\n\n1,2\n"),
    ],
)
def test_predict_from_a_text_file(
    runtime: Recorder, capsys: pytest.CaptureFixture[str], tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content)
    assert predicted(runtime, capsys, "--obs-file", str(tmp_path / name)) == ([[1.0], [2.0]], ROWS)


def test_predict_from_an_array_file(
    runtime: Recorder, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    np.save(tmp_path / "obs.npy", np.array(ROWS, dtype=np.float32))
    assert predicted(runtime, capsys, "--obs-file", str(tmp_path / "obs.npy")) == ([[1.0], [2.0]], ROWS)


@pytest.mark.parametrize("content", ["[[0.5, 0.25], [1, 2]]", "0.5,0.25\n1,2\n"])
def test_predict_from_standard_input(
    runtime: Recorder,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    content: str,
) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(content))
    assert predicted(runtime, capsys, "--obs-file", "-") == ([[1.0], [2.0]], ROWS)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([], 'give either --obs "0.1, 0.2, 0.3" or --obs-file FILE'),
        (["--obs", "1", "--obs-file", "x.npy"], "give either --obs"),
        (["--obs", "1, two"], "--obs must hold numbers, the same count in every row, got '1, two'"),
        (["--obs", ""], "--obs must hold numbers"),
        (["--obs-file", "missing.npy"], "--obs-file missing.npy cannot be read: No such file or directory"),
        (["--obs-file", "missing.csv"], "--obs-file missing.csv cannot be read: No such file or directory"),
        (["--obs-file", "obs.txt"], "--obs-file must end in .npy, .csv or .json, got 'obs.txt'"),
        (
            ["--obs-file", "ragged.json"],
            "--obs-file ragged.json must hold numbers, the same count in every row",
        ),
        (["--obs-file", "broken.json"], "--obs-file broken.json must hold numbers"),
        (["--obs-file", "noise.npy"], "--obs-file noise.npy does not hold one array of numbers"),
        (["--obs-file", "empty.npy"], "--obs-file empty.npy cannot be read"),
        (["--obs-file", "words.npy"], "--obs-file words.npy does not hold one array of numbers"),
        (["--obs-file", "objects.npy"], "--obs-file objects.npy does not hold one array of numbers"),
    ],
)
def test_predict_explains_bad_observations(
    runtime: Recorder,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("ragged.json").write_text("[[1, 2], [3]]")
    Path("broken.json").write_text("[[1, 2")
    Path("noise.npy").write_bytes(b"not an array")
    Path("empty.npy").touch()
    np.save("words.npy", np.array(["a", "b"]))
    np.save("objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    assert main(["predict", "--checkpoint", "x", *arguments]) == 2
    (line,) = error_lines(capsys)
    assert line.startswith(f"error: {complaint}")
    assert runtime.calls == []


# ---- configs, describe


def test_configs_lists_and_shows(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs"]) == 0
    listed = capsys.readouterr().out
    assert "sac/pendulum" in listed and "Pendulum-v1" in listed and "10,000" in listed
    assert main(["configs", "sac/pendulum"]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# SAC on Pendulum-v1") and "learning_rate: 1e-3" in shown
    assert main(["configs", "--show", "sac/pendulum"]) == 0  # as it was written before
    assert capsys.readouterr().out == shown


def test_configs_show_suggests_a_name(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["configs", "sac/pendulm"]) == 2
    expected = "error: 'sac/pendulm' is not a packaged config (did you mean 'sac/pendulum'?)"
    assert error_lines(capsys) == [expected]


def test_describe_prints_every_field(runtime: Recorder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["describe", "sac"]) == 0
    lines = capsys.readouterr().out.splitlines()
    rows = {line.split()[0]: line for line in lines if line[2:3].strip()}  # not what a cell wraps into
    for name, field in get_recipe("sac").settings.model_fields.items():
        assert str(field.description).split()[0] in rows[name]
    gamma = rows["gamma"]
    assert all(text in gamma for text in ("number", "in [0, 1]", "0.99", "discount"))
    assert "list of integers" in rows["hidden_sizes"] and "[256, 256]" in rows["hidden_sizes"]
    assert "required" in rows["total_timesteps"] and ">= 1" in rows["early_stopping.patience"]


# ---- errors


def test_all_mistakes_of_a_config_are_printed_and_nothing_runs(
    runtime: Recorder, capsys: pytest.CaptureFixture[str]
) -> None:
    changes = ["algo_kwargs.gama=1", "seed=-1", "algo_kwargs.hidden_sizes=big"]
    assert main(["train", "-c", "sac/pendulum", *(part for c in changes for part in ("--set", c))]) == 2
    assert error_lines(capsys) == [
        "error: seed must be >= 0, got -1",
        "error: algo_kwargs.hidden_sizes must be a list of integers, got 'big'",
        "error: algo_kwargs.gama is not a known key (did you mean 'gamma'?)",
    ]
    assert runtime.calls == []


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["describe", "scc"], "error: algo must be one of awac"),
        (["train", "-c", "sac/pendulum", "--set", "algo=scc"], "error: algo must be one of awac"),
        (["train", "-c", "nowhere.yaml"], "error: config 'nowhere.yaml' is neither a file nor"),
        (["train", "-c", "sac/pendulum", "--set", "seed"], "error: --set needs key=value"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    runtime: Recorder, capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(arguments) == 2
    (line,) = error_lines(capsys)
    assert line.startswith(complaint)


DEMO = ["train", "-c", "td3_bc/demo"]
POLICY = str(Path(__file__).parents[1] / "fixtures" / "format_1" / "sac_policy.safetensors")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ([*DEMO, "--seed", "3", "--set", "seed=4"], "seed is given twice, as 4 and as 3"),
        ([*DEMO, "--set", "seed=3", "--set", "seed=4"], "seed is given twice, as 3 and as 4"),
        ([*DEMO, "--seed", "3", "--seeds", "0-1"], "--seed and --seeds must not be given together"),
        (
            [*DEMO, "--steps", "9", "--set", "total_timesteps=8"],
            "total_timesteps is given twice, as 8 and as 9",
        ),
        ([*DEMO, "-o", "a", "--set", "output_dir=b"], "output_dir is given twice, as 'b' and as 'a'"),
        (
            [*DEMO, "--data", "a.npz", "--set", "algo_kwargs.dataset_path=b"],
            "algo_kwargs.dataset_path is given",
        ),
        (
            [*DEMO, "--data", "a.csv", "--reward", "x", "--set", "algo_kwargs.columns.reward=y"],
            "algo_kwargs.columns is given twice",
        ),
        ([*DEMO, "--reward", "score"], "algo_kwargs.columns is not used by dataset_kind 'random'"),
        ([*DEMO, "--set", "algo_kwargs.dataset_noise=1"], "algo_kwargs.dataset_noise is not used by"),
        (["configs", "td3_bc/demo", "--show", "sac/pendulum"], "one config must be named"),
        (
            ["predict", "-k", POLICY, "--obs", "1 2 3", "--missing-values", "hold"],
            "--missing-values hold needs",
        ),
        (
            ["report", "runs", "--out", "a.md", "--format", "html"],
            "--out a.md ends in .md and --format says html",
        ),
        (["report", "runs", "--out", "a.pdf"], "--out must end in .html, .md or .csv"),
        (["report", "runs", "--out", "a.csv", "--title", "Mine"], "title has no place in a CSV file"),
        (
            ["sweep", "pendulum", "--backend", "ray", "--workers", "2"],
            "workers must be left out with --backend ray",
        ),
        (
            ["data", "inspect", "log.npz", "--plot", "a.png", "--no-plot"],
            "--plot a.png and --no-plot",
        ),
        (
            ["data", "inspect", "log.npz", "--env-id", "Pendulum-v1", "--action-low", "-1"],
            "--env-id Pendulum-v1 and --action-low/--action-high both give bounds",
        ),
        (["data", "inspect", "log.npz", "--reward", "x"], "columns is not used by dataset_kind 'npz'"),
        (
            ["data", "inspect", "log.npz", "--csv-decimal", ","],
            "csv_decimal is not used by dataset_kind 'npz'",
        ),
        (["data", "convert", "log.npz", "b.npz", "--minari-root", "x"], "--minari-root is for Minari ids"),
        (
            ["data", "collect", "--env-id", "Pendulum-v1", "--out", "a.npz", "--noise", "0.1"],
            "--noise needs --checkpoint",
        ),
        (
            ["data", "collect", "--env-id", "Pendulum-v1", "--out", "a.npz", "--random-share", "0.1"],
            "--random-share needs --checkpoint",
        ),
    ],
)
def test_nothing_that_is_given_is_ignored(
    runtime: Recorder,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    complaint: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = {"observations": np.ones((4, 2)), "actions": np.ones((4, 1)), "rewards": np.ones(4)}
    np.savez("log.npz", **rows, terminals=np.zeros(4), timeouts=np.array([0, 0, 0, 1]))
    assert main(arguments) == 2
    assert error_lines(capsys)[0].startswith(f"error: {complaint}")
    assert runtime.calls == [] and [file.name for file in tmp_path.iterdir()] == ["log.npz"]


def test_an_exported_policy_does_not_act_elsewhere(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", "-k", POLICY, "--env-id", "Pendulum-v1", "--device", "cuda"]) == 2
    assert error_lines(capsys) == [
        "error: device must be cpu: an exported policy acts on the processor, got 'cuda'"
    ]


def test_what_two_options_say_alike_is_no_contradiction(runtime: Recorder) -> None:
    same = ["--seed", "3", "--set", "seed=3", "--set", "algo_kwargs.dataset_kind=npz", "--data", "a.npz"]
    assert main([*DEMO, *same]) == 0
    (_, arguments), *_ = runtime.calls
    config = arguments["config"]
    assert (config.seed, config.algo_kwargs["dataset_kind"]) == (
        3,
        "npz",
    )  # --data gives way in how it is read
    assert config.algo_kwargs["dataset_path"].endswith("/a.npz")


@pytest.mark.parametrize(
    "problem", [CheckpointError("no checkpoint in runs/x"), RunFailed("loss became NaN")]
)
def test_an_expected_problem_of_the_runtime_is_code_2(
    runtime: Recorder, capsys: pytest.CaptureFixture[str], problem: Exception
) -> None:
    runtime.problem = problem
    assert main(["evaluate", "--checkpoint", "runs/x"]) == 2
    assert error_lines(capsys) == [f"error: {problem}"]


def test_a_bug_is_one_line_and_a_report(
    runtime: Recorder, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runtime.problem = ZeroDivisionError("a bug\nof ours")
    assert main(["evaluate", "--checkpoint", "runs/x"]) == 70
    (report,) = tmp_path.glob("rl-training-bug-*.txt")
    assert error_lines(capsys) == [
        "error: this is a bug of rl-training: ZeroDivisionError: a bug of ours; "
        f"full report: {report}; rl-training --debug COMMAND … shows the traceback"
    ]
    text = report.read_text()
    assert "command: rl-training evaluate --checkpoint runs/x" in text
    assert "Traceback (most recent call last)" in text
    assert "torch" in text


def test_a_bug_without_a_place_for_its_report(
    runtime: Recorder, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "absent"))
    runtime.problem = ZeroDivisionError("a bug")
    assert main(["evaluate", "--checkpoint", "runs/x"]) == 70
    assert "no report could be written" in error_lines(capsys)[0]


@pytest.mark.parametrize(
    ("problem", "words"),
    [
        (MemoryError("Unable to allocate 8 TiB"), "Unable to allocate 8 TiB"),
        (MemoryError(), "the system has no more"),
        (OSError(errno.ENOMEM, "Cannot allocate memory"), "[Errno 12] Cannot allocate memory"),
        (
            RuntimeError("DefaultCPUAllocator: you tried to allocate 4294967296 bytes"),
            "4 GiB wanted at once",
        ),
    ],
)
def test_too_little_memory_is_no_bug(
    runtime: Recorder, capsys: pytest.CaptureFixture[str], problem: Exception, words: str
) -> None:
    runtime.problem = problem
    assert main(["evaluate", "--checkpoint", "runs/x"]) == 2
    expected = f"error: not enough memory: {words}; choose smaller sizes or less data"
    assert error_lines(capsys) == [expected]


def test_debug_shows_the_traceback_of_a_bug(
    runtime: Recorder, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    runtime.problem = ZeroDivisionError("a bug")
    assert main(["--debug", "evaluate", "--checkpoint", "runs/x"]) == 70
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert "ZeroDivisionError: a bug" in lines


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["trian"], "No such command 'trian'"),
        (["train", "--confg", "x"], "No such option"),
        (["train"], "--config"),
        (["evaluate", "--checkpoint", "x", "--episodes", "0"], "--episodes"),
        (["resume", "--checkpoint", "x", "--total-timesteps", "many"], "--total-timesteps"),
    ],
)
def test_wrong_usage_is_code_2(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert main(arguments) == 2
    assert complaint in "\n".join(error_lines(capsys))


COMMANDS = ["train", "evaluate", "predict", "resume", "configs", "describe", "demo"]


@pytest.mark.parametrize("command", COMMANDS)
def test_help_of_a_command_teaches_by_example(capsys: pytest.CaptureFixture[str], command: str) -> None:
    assert main([command, "--help"]) == 0
    printed = capsys.readouterr().out
    assert "Examples:" in printed and f"rl-training {command}" in printed


def test_help_lists_the_commands_and_version_prints(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    printed = capsys.readouterr().out
    assert all(command in printed for command in [*COMMANDS, "data"])
    assert main(["--version"]) == 0
    assert capsys.readouterr().out.startswith("rl-training 0.")


@pytest.mark.parametrize(("text", "seeds"), [("0-3", [0, 1, 2, 3]), ("5", [5]), ("0-1, 7", [0, 1, 7])])
def test_seeds_are_lists_and_ranges(text: str, seeds: list[int]) -> None:
    assert parse_seeds(text) == seeds
    with pytest.raises(ConfigError, match="seeds must be a list such as 0-7 or 0,3,5, got '1-x'"):
        parse_seeds("1-x")
