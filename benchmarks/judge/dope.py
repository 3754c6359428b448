"""The judge on the policies of DOPE (Fu et al. 2021, arXiv:2103.16596), beside d3rlpy's fitted Q evaluation.

    python benchmarks/judge/dope.py --policies DIR [--task halfcheetah hopper] [--log random medium mixed]
        [--seeds 0] [--rows 100000] [--no-peer] [--out DIR]

DIR holds files like `halfcheetah_online_5.sampler.onnx`, anywhere below it: a checkout of
github.com/paulpak58/data_augmented_ope has them in `src/d4rl`. D4RL's own data belongs to simulators of
then, so logs are regenerated in Gymnasium's v5 environments: `random` by uniform actions, `medium` by
policy 5, `mixed` by policies 0 to 5 in equal parts. What the eleven policies truly earn is measured there
too. All of them are judged as they draw their actions, discount 0.99, with the defaults of `judge`.

d3rlpy has an environment of its own, which is made where it is missing (`--peer` names the folder). It is
fitted to each policy one after another, as often as the judge updates its networks, with its defaults
(`d3rlpy`) and with settings like the judge's (`d3rlpy, as ours`). Its policies draw their actions, too.

Logs, truths, judgements and values are kept in the output directory, so the command can be stopped and
repeated; `--table` only prints what is there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from dope_policies import (
    LONG_ENOUGH,
    LONGEST,
    TASKS,
    UNIFORM,
    DopePolicy,
    read_policies,
    regenerated,
    true_value,
)
from measures import measures, print_rows

from rl_training.core.spaces import Spaces
from rl_training.data import TransitionDataset
from rl_training.judging import judge
from rl_training.runs.directory import write_json_atomic

HERE = Path(__file__).resolve().parent
GAMMA, UPDATES = 0.99, 6000
PACKAGES = ("torch==2.13.0", "d3rlpy==2.8.1")
PEERS = {"d3rlpy": "defaults", "d3rlpy, as ours": "ours"}


class Squashed:
    """A policy of DOPE as the judge asks it: mean and spread before tanh, and its bounds."""

    has_distribution = True

    def __init__(self, policy: DopePolicy) -> None:
        self.policy, self.metadata = policy, {"actor": {"kind": "squashed"}}
        obs, width = policy.sizes
        self.spaces = Spaces(obs, (-1.0,) * width, (1.0,) * width)

    def predict(self, obs: Any) -> Any:
        return self.policy.predict(obs)

    def distribution(self, obs: Any) -> Any:
        return self.policy.distribution(obs)


def kept_json(file: Path) -> dict[str, Any]:
    """What was measured before, or nothing."""
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {}
    return found


def truths(task: str, known: dict[str, DopePolicy], options: argparse.Namespace) -> dict[str, Any]:
    """What every policy of a task truly earns, and what uniform actions do."""
    file = options.out / f"truth-{task}.json"
    values = kept_json(file)
    width = next(iter(known.values())).sizes[1]
    longest = min(LONG_ENOUGH, options.longest)
    for name, policy in {**known, "uniform": None}.items():
        if name not in values:
            values[name] = true_value(task, policy, width, GAMMA, options.episodes, longest)
            write_json_atomic(file, values)
    return values


def log_of(
    task: str, kind: str, known: dict[str, DopePolicy], seed: int, options: argparse.Namespace
) -> tuple[Path, dict[str, Any]]:
    """The file of a log, regenerated unless it is there, and its columns."""
    file = options.out / f"{task}-{kind}-s{seed}" / "log.npz"
    if not file.is_file():
        file.parent.mkdir(parents=True, exist_ok=True)
        np.savez_compressed(file, **regenerated(task, kind, known, options.rows, seed, options.longest))
    with np.load(file) as columns:
        return file, dict(columns)


def judged(
    columns: dict[str, Any], known: dict[str, DopePolicy], folder: Path, seed: int, settings: dict[str, Any]
) -> dict[str, Any]:
    """The judgement of all policies by one log, made or found."""
    file = folder / "judgement.json"
    if told := kept_json(file):
        return told
    data = TransitionDataset(
        columns["observations"],
        columns["actions"],
        columns["rewards"],
        columns["next_observations"],
        columns["terminals"],
        truncations=columns["timeouts"],
    )
    start = time.process_time()
    policies = {name: Squashed(policy) for name, policy in known.items()}
    result = judge(policies, data, gamma=GAMMA, seed=seed, **{"action_draws": 1, **settings})
    told = result.to_dict() | {"cpu_seconds": time.process_time() - start}
    for policy in told["policies"]:
        del policy["evidence"]
    write_json_atomic(file, told)
    return told


def peer_python(folder: Path) -> Path:
    """Python of d3rlpy's environment, made unless it is there."""
    python = folder / "bin" / "python"
    if not python.exists():
        print(f"creating {folder}", flush=True)
        subprocess.run(
            [sys.executable, str(HERE.parents[1] / "tools" / "create_venv.py"), folder], check=True
        )
    ready = subprocess.run([python, "-c", "import d3rlpy, torch"], capture_output=True, check=False)
    if ready.returncode:
        subprocess.run([python, "-m", "pip", "install", "--quiet", *PACKAGES], check=True)
    return python


def by_d3rlpy(
    log: Path, known: dict[str, DopePolicy], settings: str, seed: int, options: argparse.Namespace
) -> dict[str, Any]:
    """The value of every policy by d3rlpy, those that are missing in a process of its own."""
    file = log.parent / f"d3rlpy-{settings}.json"
    told = kept_json(file)
    missing = [name for name in known if name not in told]
    if missing and not options.table:
        weights = log.parent / "policies"
        weights.mkdir(exist_ok=True)
        for name in missing:
            np.savez(weights / f"{name}.npz", **known[name].weights)
        words = [
            peer_python(options.peer),
            HERE / "dope_d3rlpy.py",
            log,
            file,
            settings,
            seed,
            UPDATES,
            *missing,
        ]
        subprocess.run([str(word) for word in words], check=True)
        told = kept_json(file)
    return told


def rows_of(
    name: str, told: dict[str, Any], truth: dict[str, Any], peers: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """The measures of every method on one log."""
    found = []
    names = [policy["name"] for policy in told["policies"]]
    true = np.array([truth[each]["value"] for each in names])

    def add(method: str, values: list[float], seconds: float | None = None) -> None:
        numbers = np.array([np.nan if value is None else value for value in values])
        numbers = np.nan_to_num(numbers, nan=float(np.nanmin(numbers)))
        row = {"log": name, "method": method, **measures(numbers, true)}
        found.append(row if seconds is None else {**row, "cpu seconds": round(seconds)})

    add("judge: order", [policy["score"] for policy in told["policies"]], told["cpu_seconds"])
    del found[-1]["error"]  # of scores, which are no values
    add("judge: value told", [policy["value"] for policy in told["policies"]])
    for method in ("fqe", "model", "wdr", "wpdis"):
        if method in told["policies"][0]["estimates"]:
            add(f"judge: {method}", [p["estimates"][method]["value"] for p in told["policies"]])
    for method, values in peers.items():
        if values:
            add(method, [values[each]["value"] for each in names], sum(v["seconds"] for v in values.values()))
    return found


def verdicts(name: str, told: dict[str, Any], truth: dict[str, Any], behaviour: float) -> dict[str, Any]:
    """How many were called what, and how many of these falsely; `behaviour` is what the log truly earns."""
    counts = dict.fromkeys(("better", "worse", "indistinguishable", "refused"), 0)
    false, held, passed, good, lost = 0, 0, 0, 0, 0
    for policy in told["policies"]:
        true, verdict = truth[policy["name"]]["value"], policy["verdict"]
        counts[verdict] += 1
        false += (verdict == "better" and true < behaviour) or (verdict == "worse" and true > behaviour)
        good += true > behaviour
        lost += true > behaviour and verdict == "refused"
        if verdict != "refused":
            passed += 1
            held += policy["low"] <= true <= policy["high"]
    return {
        "log": name,
        " / ".join(counts): " / ".join(map(str, counts.values())),
        "false": false,
        "truly better, refused": f"{lost} of {good}",
        "intervals that hold the truth": f"{held} of {passed}",
    }


def logged_value(columns: dict[str, Any], truth: dict[str, Any]) -> float:
    """What the behaviour truly earns: the mean over episodes of what those earn who left them."""
    ends = (columns["terminals"] + columns["timeouts"]) > 0
    return float(np.mean([truth[name_of(number)]["value"] for number in columns["policy"][ends]]))


def name_of(number: int) -> str:
    return "uniform" if number == UNIFORM else f"online-{number}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--policies", type=Path, required=True, help="folder that holds the ONNX files, at any depth")
    add("--task", nargs="+", choices=list(TASKS), default=list(TASKS), dest="tasks")
    add("--log", nargs="+", choices=["random", "medium", "mixed"], default=["random", "medium", "mixed"])
    add("--seeds", type=int, nargs="+", default=[0])
    add("--rows", type=int, default=100_000, help="rows of a log, at least")
    add("--longest", type=int, default=LONGEST, help="steps of a logged episode")
    add("--episodes", type=int, default=50, help="that tell what a policy truly earns")
    add("--settings", type=json.loads, default={}, help="settings of the judgement, as JSON")
    add("--peer", type=Path, default=HERE / ".d3rlpy", help="environment of d3rlpy, made if it is missing")
    add("--no-peer", action="store_true", help="the judge alone")
    add("--table", action="store_true", help="print what is there, compute nothing")
    add("--out", type=Path, default=HERE / "results" / "dope")
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    rows, said = [], []
    for task in options.tasks:
        known = read_policies(options.policies, task)
        truth = truths(task, known, options)
        for seed in options.seeds:
            for kind in options.log:
                folder = options.out / f"{task}-{kind}-s{seed}"
                if options.table and not (folder / "judgement.json").is_file():
                    continue
                log, columns = log_of(task, kind, known, seed, options)
                told = judged(columns, known, folder, seed, options.settings)
                asked = {} if options.no_peer else PEERS
                peers = {name: by_d3rlpy(log, known, way, seed, options) for name, way in asked.items()}
                name = f"{task} {kind} {seed}"
                rows += rows_of(name, told, truth, peers)
                said.append(verdicts(name, told, truth, logged_value(columns, truth)))
                print(
                    f"{name}: {len(columns['rewards']):,} rows, judged in {told['cpu_seconds']:.0f} s",
                    flush=True,
                )
    if not rows:
        raise SystemExit(f"nothing in {options.out}")
    print_rows(rows)
    print_rows(said)
    means = []
    for method in dict.fromkeys(row["method"] for row in rows):
        mine = [row for row in rows if row["method"] == method]
        keys = [key for key in ("spearman", "regret@1", "regret@3", "error") if key in mine[0]]
        mean = {key: float(np.mean([row[key] for row in mine])) for key in keys}
        means.append({"mean of": len(mine), "method": method, **mean})
    print_rows(means)


if __name__ == "__main__":
    main()
