"""Every benchmark starts: with a tiny budget each comes to its end and says what it measured.

The numbers mean nothing here. What no test environment has is left out or stood in for: other libraries take
no part, a checkout of CORL is a few lines, and benchmarks of d3rlpy and Ray alone go as far as their help.
"""

import ast
import json
import multiprocessing
import os
import pickle
import runpy
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path

import h5py
import numpy as np
import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
BENCHMARKS, SOURCE = ROOT / "benchmarks", ROOT / "src"
SECONDS = 240.0
EPISODES, LENGTH = 24, 20
JUDGE = {"updates": 2, "members": 2, "model_updates": 2, "density_updates": 2, "rollout_starts": 2}
NO_PEERS = "--skip-install --peers-env nowhere --output-dir out"


@dataclass(frozen=True)
class Start:
    words: str
    """Its command line; `{data}` is a folder of logs, `{corl}` a stand-in for a checkout of CORL."""
    says: str
    """What stands in its output if it came to its end."""
    code: int = 0


SMALL = "--set algo_kwargs.hidden_sizes=[8,8] --set algo_kwargs.batch_size=8 --set eval_episodes=1"
TINY_BC = "--algo bc --width 8 --batch-size 8"
TRUTH = "--data {data} --set pendulum-random --share 0.001 --out out --settings {judge}"
STARTS = {
    "scores/offline_scores.py": Start(
        f"--data {{log}} --reference=-1000,0 --algo td3_bc/pendulum:4 --seeds 0 --output-dir out {SMALL}",
        "| pendulum-random-v0 | td3_bc/pendulum | 4 | 1 |",
    ),
    "scores/offline_corl.py": Start(
        "--corl {corl} --data {log} --reference=-1000,0 --algo corl-iql:4 --seeds 0 --output-dir out",
        "| pendulum-random-v0 | corl-iql | 4 | 1 | -7 ± 0 |",
    ),
    "scores/auto.py": Start(
        "--quick --problems tank --planted few-episodes --seeds 0 --rounds 1 --out out",
        "planted few-episodes 0: out/few-episodes-s0/log.csv: the log has 8 episodes; 40 are the least",
    ),
    "scores/dead_time.py": Start(
        "--algos td3_bc --seeds 0 --updates 4 --episodes 4", "| td3_bc | x, lags(a, 2) | 4 |"
    ),
    "scores/finetune_scores.py": Start(
        "pendulum --data {log} --corl {corl} --cases td3_bc corl-iql --seeds 0 --offline 4 --online 4 "
        "--output-dir out",
        "| corl-iql | 1 |",
    ),
    "scores/online_pendulum.py": Start(
        "--algos sac --seeds 0 --target -1000000 --eval-interval 20 --learning-starts 10 --output-dir out",
        "\n| sac | 20 | ",
    ),
    "scores/limits.py": Start(
        "--runs 40 --updates 12 --search 2 --horizon 2 --episodes 4", "tank 0: logged {'return': "
    ),
    "scores/cartpole.py": Start(
        "log --algos iql --updates 2 --episodes 1 --logged 3", "| algorithm | seed | return | log's mean |"
    ),
    "scores/plant_of_choices.py": Start(
        "--runs 8 --updates 2 --seeds 0", "| two switches, learned as choices | 0 | "
    ),
    "scores/past_of_the_tank.py": Start(
        "--algos iql --logs a --histories 2 --updates 4 --episodes 8 --rounds 0",
        "| (a) all logged | iql | 2 | ",
    ),
    "scores/parity/run.py": Start("", "| case | 1 | 5 | 50 |"),
    "speed/imagined_updates.py": Start("--quick --updates 1", "| 60 | 5 | 64 | 100 | "),
    "speed/amd_path.py": Start("--algo bc --starts 1 --seconds 0.01", "\n| bc | "),
    "speed/collect_ahead.py": Start(
        "--env Waits(0.1)-v0 --width 8 --mode eager --steps 20 --rounds 1", "\n| Waits(0.1)-v0 | "
    ),
    "speed/compile_time.py": Start(f"{TINY_BC} --seconds 0.01 --backend aot_eager", "\n| bc | 1 | "),
    "speed/cost_growth.py": Start(
        "--panel batch --mode eager --at-most 32 --seconds 0.01", "batch 32 {'eager'"
    ),
    "speed/data_loading.py": Start(
        "--rows 2000 --repeats 1 --files log.parquet", "log.parquet: peak memory / arrays"
    ),
    "speed/database_loading.py": Start("--rows 3000 --columns 3 --repeats 1", "| "),
    "speed/memory_growth.py": Start(f"{TINY_BC} --mode eager --updates 20", "\n| bc | eager |"),
    "speed/predict_latency.py": Start("--calls 20 --rounds 2", "| ONNX (onnxruntime) |"),
    "speed/profile_updates.py": Start(f"{TINY_BC} --mode eager", "\n| bc | "),
    "speed/throughput/__main__.py": Start(
        f"{NO_PEERS} --algo bc --hidden 64 --threads 1 --kind update --rounds 1 --seconds 0.01",
        "written: out/report.md",
    ),
    "faults/kill_auto.py": Start("--help", "--kills"),
    "faults/kill_commands.py": Start("train_offline --kills 1", "1 comparisons; differs: nothing"),
    "faults/kill_finetune.py": Start("--kills 1 --algo td3_bc", "from the undisturbed run: none"),
    "faults/kill_resume.py": Start("--kills 1 --seed 1", "from the undisturbed run: none"),
    "faults/sweep_kill.py": Start(
        "--algo td3_bc --seeds 1 --steps 40 --kills 0", "1 complete runs, all equal bit for bit"
    ),
    "faults/tune_kill.py": Start("--trials 1 --after 0 --workers 1", "1 trials: {'COMPLETE': 1}"),
    "faults/ray_faults.py": Start("--help", "--steps"),
    "faults/mutants.py": Start("warm-up: ignored", "1 of 1 faults killed"),
    "serve/latency.py": Start("--calls 20 --rounds 1 --connections 2 --width 8", "\n| serve | "),
    "serve/soak.py": Start("--calls 40", "40 rows in the decision log of 40 calls"),
    "serve/kills.py": Start("--kills 1", "beyond it: 0"),
    "serve/hostile.py": Start("--requests 40", "errors of the server or no answer: 0"),
    "judge/truth.py": Start(f"{TRUTH} --seeds 0", "| pendulum-random-0.001 0 | headline |"),
    "judge/hidden.py": Start("--logs tank --seeds 0 --updates 20", "logs with another named:"),
    "judge/dial.py": Start(
        "--plants cart-pole --algos lion --out out --set model_updates=2 --set behavior_updates=2 "
        "--set total_timesteps=5 --set horizon=2 --set hidden_sizes=[4] --judge "
        "--picture dial.html --settings {judge}",
        ", takes ",
    ),
    "judge/public_plants.py": Start(
        "--environment {simulators} --logs out --plants four-tanks --runs 2", "| four-tanks | (stiff) | -"
    ),
    "judge/industrial_sets.py": Start(
        "--environment {simulators} --out out --sets mediocre-0.4 --episodes 40 --length 12 --history 2 "
        "--set model_updates=2 --set behavior_updates=2 --set total_timesteps=5 --set horizon=2 "
        "--set hidden_sizes=[4] --settings {judge}",
        "\n| mediocre-0.4 | -100.0, -100.0 | ",
    ),
    "judge/selection.py": Start(f"{TRUTH} --seed 0", "| judge's first choice |"),
    "judge/d3rlpy_fqe.py": Start("--help", "--ours"),
    "judge/dope.py": Start(
        "--policies {data} --task hopper --log mixed --rows 600 --longest 20 --episodes 2 --out out "
        "--no-peer --settings {judge}",
        "| hopper mixed 0 | judge: model |",
    ),
    "judge/short_episodes.py": Start(
        "--plants cart --length 20 --seeds 0 --settings {judge}", "| cart, 20 rows, seed 0 | model |"
    ),
    "judge/active_ops.py": Start(
        "--data {returns} --policies 5 --repetitions 2 --episodes 20 50", "| both, first 5 | "
    ),
    "judge/speed.py": Start("--data {log} --widths 8 --rounds 1", "ms an update of 96 networks"),
    # two repetitions cannot cover in 93 to 97 % of cases, which its exit code says
    "judge/interval_coverage.py": Start("--repetitions 2", "normal             1              3", code=1),
}
STARTED_BY_OTHERS = {
    "scores/finetune_corl.py",
    "speed/throughput/worker.py",
    "judge/dope_d3rlpy.py",
    "judge/simulate.py",
}
FOUR_TANKS = """
    class four_tank:
        def __init__(self, int_method):
            assert int_method == "casadi"

        def __call__(self, levels, volts):
            return [0.001 * volts[index % 2] - 0.01 * levels[index] for index in range(4)]
"""
CORL_SCRIPT = """
    from dataclasses import dataclass

    import d4rl, gym, pyrallis, wandb
    from tqdm import trange

    @dataclass
    class TrainConfig:
        env: str = ""
        device: str = ""
        seed: int = 0
        eval_freq: int = 0
        n_episodes: int = 0
        buffer_size: int = 0
        max_timesteps: int = 0
        offline_iterations: int = 0
        online_iterations: int = 0
        normalize_reward: bool = False
        beta: float = 0.0

    @pyrallis.wrap()
    def train(config):
        env = gym.wrappers.TransformObservation(gym.make(config.env), lambda obs: obs)
        env.seed(config.seed)
        assert env.reset().shape == d4rl.qlearning_dataset(env)["observations"].shape[1:]
        for step in trange(config.max_timesteps + config.offline_iterations + config.online_iterations):
            score = 100 * env.get_normalized_score(-7.0)
            wandb.log({"eval/d4rl_normalized_score": score, "d4rl_normalized_score": score}, step=step)
"""
INDUSTRIAL = """
    import numpy as np

    class IDS:
        def __init__(self, p, inital_seed=None):
            names = ("p", "v", "g", "h", "f", "c", "cost", "reward")
            self.state = dict.fromkeys(names, 50.0) | {"o": np.zeros(10)}

        def step(self, action):
            self.state["v"] += action[0]
            self.state["reward"] = -100.0 / sum(0.97**step for step in range(100)) * 100.0
"""


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """What command lines name: logs of random numbers, and a checkout of CORL with one script."""
    root = tmp_path_factory.mktemp("benchmarks")
    log, of_judge = root / "pendulum-random-v0.hdf5", root / "pendulum" / "pendulum_random_v1.1.0.h5"
    of_judge.parent.mkdir()
    rng, rows = np.random.default_rng(0), EPISODES * LENGTH
    columns = {
        "observations": rng.normal(size=(rows, 3)),
        "next_observations": rng.normal(size=(rows, 3)),
        "actions": rng.uniform(-2.0, 2.0, (rows, 1)),
        "rewards": -rng.random(rows),
        "terminals": np.zeros(rows),
        "timeouts": np.arange(rows) % LENGTH == LENGTH - 1,
    }
    for path in (log, of_judge):
        with h5py.File(path, "w") as file:
            file.attrs["env_id"] = "Pendulum-v1"
            for name, values in columns.items():
                file.create_dataset(name, data=values.astype(np.float32))
    for kind in ("offline", "finetune"):
        script = root / "corl" / "algorithms" / kind / "iql.py"
        script.parent.mkdir(parents=True)
        script.write_text(textwrap.dedent(CORL_SCRIPT))
    for number in range(7):
        write_dope_policy(root / f"hopper_online_{number}.sampler.onnx", rng)
    returns = {str(number): rng.normal(number, 1.0, 60) for number in range(12)}
    for name, values in (
        ("ope_values", {key: float(key) for key in returns}),
        ("full_reward_samples", returns),
    ):
        (root / f"{name}.pkl").write_bytes(pickle.dumps(values))
    environment = root / "simulators"
    for folder in ("bin", "pcgym", "industrial_benchmark_python"):
        (environment / folder).mkdir(parents=True)
    (environment / "pcgym" / "model_classes.py").write_text(textwrap.dedent(FOUR_TANKS))
    (environment / "industrial_benchmark_python" / "IDS.py").write_text(textwrap.dedent(INDUSTRIAL))
    python = environment / "bin" / "python"
    python.write_text(f'#!/bin/sh\nPYTHONPATH={environment} exec {sys.executable} "$@"\n')
    python.chmod(0o755)
    settings = root / "corl" / "configs" / "offline" / "iql" / "pendulum" / "random_v2.yaml"
    settings.parent.mkdir(parents=True)
    settings.write_text("beta: 3\nunknown: 1\n")
    return {
        "data": str(root),
        "log": str(log),
        "corl": str(root / "corl"),
        "simulators": str(environment),
        "returns": str(root),
        "judge": json.dumps(JUDGE, separators=(",", ":")),
    }


def write_dope_policy(path: Path, rng: np.random.Generator) -> None:
    """The weights of a policy of DOPE's, of which a benchmark reads nothing else."""
    onnx = pytest.importorskip("onnx")
    sizes = {"fc0": (4, 11), "fc1": (4, 4), "last_fc": (3, 4), "last_fc_log_std": (3, 4)}
    weights = {f"{name}.weight": rng.normal(size=shape) for name, shape in sizes.items()}
    weights |= {f"{name}.bias": rng.normal(size=shape[0]) for name, shape in sizes.items()}
    tensors = [onnx.numpy_helper.from_array(each.astype(np.float32), name) for name, each in weights.items()]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([], "policy", [], [], tensors)), path)


def run_script(script: Path, words: list[str], folder: Path, environment: dict[str, str]) -> None:
    """In a process of its own that has the large libraries already."""
    os.chdir(folder)
    os.environ.update(environment)
    with open("output.txt", "w") as output:
        os.dup2(output.fileno(), 1)
        os.dup2(output.fileno(), 2)
    sys.argv = [str(script), *words]
    sys.path.insert(0, str(script.parent))
    runpy.run_path(str(script), run_name="__main__")


def started(script: Path, words: list[str], folder: Path, environment: dict[str, str]) -> tuple[int, str]:
    """Exit code and output; the libraries are imported once for all of these scripts."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "gymnasium", "h5py", "scipy.stats", "pytest"])
    process = context.Process(target=run_script, args=(script, words, folder, environment))
    process.start()
    process.join(SECONDS)
    if process.exitcode is None:
        process.kill()
        process.join()
    return process.exitcode or 0, (folder / "output.txt").read_text()


@pytest.mark.parametrize("name", STARTS)
def test_it_runs_to_its_end(name: str, tmp_path: Path, places: dict[str, str]) -> None:
    start, script = STARTS[name], BENCHMARKS / name
    words = [word.format_map(places) for word in start.words.split()]
    # one thread, as everywhere; nothing is compiled where another backend is not asked for
    environment = {"PYTHONPATH": str(SOURCE), "OMP_NUM_THREADS": "1"}
    if "aot_eager" not in words:
        environment["TORCHDYNAMO_DISABLE"] = "1"
    code, output = started(script, words, tmp_path, environment)
    assert code == start.code and "Traceback" not in output and "failed:" not in output, output
    assert start.says in output


def test_no_benchmark_is_forgotten() -> None:
    """Whatever is meant to be started is in the list above."""
    scripts = {
        str(path.relative_to(BENCHMARKS))
        for path in BENCHMARKS.rglob("*.py")
        if 'if __name__ == "__main__":' in path.read_text()
    }
    assert scripts == STARTS.keys() | STARTED_BY_OTHERS


@pytest.mark.parametrize("path", sorted(BENCHMARKS.glob("speed/*.py")), ids=lambda path: path.stem)
def test_what_measures_speed_lets_rl_training_come_before_torch(path: Path) -> None:
    """Otherwise RL_TRAINING_AMD_MKL=1 has no effect on what is measured."""
    names = [name.partition(".")[0] for node in ast.parse(path.read_text()).body for name in imported(node)]
    assert "torch" not in names or names.index("rl_training") < names.index("torch")


def imported(node: ast.stmt) -> list[str]:
    """The modules that a statement imports."""
    if isinstance(node, ast.ImportFrom):
        return [node.module or ""]
    return [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
