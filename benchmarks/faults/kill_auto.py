"""Kill `rl-training auto` again and again, or nodes of the cluster that it runs on, and compare the answer.

    python benchmarks/faults/kill_auto.py --kills 30
    python benchmarks/faults/kill_auto.py --ray

A small search on the demo's log: trainings and judgements are short, all else is what `auto` does. With
`--kills` the command and its workers get SIGKILL at moments drawn at random and the same command is called
again; a search that came to its end in between is compared and begun anew. With `--ray` (needs ray) it runs
on a head and two nodes on this machine, of which one is killed while trainings run, and, in a second
search, one while candidates are judged. Answers must equal those of an undisturbed search: every number of
`auto.json` but times, and bit for bit the state of every training.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

from kill_commands import unequal_runs
from killing import descendants, differences

from rl_training.cli import main as command_line
from rl_training.demo import story
from rl_training.demo.plant import write_log
from rl_training.recommend import auto, portfolio
from rl_training.recommend.portfolio import Recipe

RUNS = 120
STAGES = {"model_updates": 150, "behavior_updates": 100, "policy_updates": 30, "horizon": 10}
RECIPES = (
    Recipe("bc", "bc", {}, updates=400),
    Recipe("lion", "lion", STAGES, updates=280),
    Recipe("td3_bc", "td3_bc", {"alpha": 40.0}, updates=600),
)
LIGHT: dict[str, Any] = {"updates": 300, "model_updates": 150, "members": 3, "importance": False}
JUDGE = auto.run_judge.judge
TIMES = ("seconds", "processor_seconds", "commands")
TIMEOUT_SECONDS = 900.0


def light_part(*arguments: Any) -> Any:
    """What a node of the cluster does instead of `auto.judge_part`."""
    policies, log, checkpoints, settings = arguments
    return auto.run_judge.judge(dict(policies), log, checkpoints=checkpoints, **settings, **LIGHT)


def small_auto(arguments: list[str]) -> int:
    """The command with short trainings and judgements; runs in a process of its own."""
    portfolio.CONTINUOUS = RECIPES
    auto.judge_part = light_part
    auto.run_judge.judge = partial(JUDGE, **LIGHT)
    return command_line(arguments)


def start(log: Path, out: Path, *options: str) -> subprocess.Popen[bytes]:
    columns = (*story.COLUMN_OPTIONS, "--action-low", "0", "--action-high", "100", "--gamma", ".9")
    words = ["auto", str(log), *columns, "--out", str(out), "--minutes", "1", "--quiet", *options]
    return subprocess.Popen([sys.executable, __file__, "--child", *words], stdout=subprocess.DEVNULL)


def without_times(found: Any) -> Any:
    """Everything that must be equal."""
    if isinstance(found, dict):
        return {key: without_times(value) for key, value in found.items() if key not in TIMES}
    return [without_times(each) for each in found] if isinstance(found, list) else found


def rounded(found: Any) -> Any:
    """Numbers as candidates judged a few at a time have them: a smaller stack rounds otherwise."""
    if isinstance(found, dict):
        return {key: rounded(value) for key, value in found.items()}
    if isinstance(found, list):
        return [rounded(each) for each in found]
    return float(f"{found:.2g}") if isinstance(found, float) else found


def unequal(out: Path, calm: Path) -> list[str]:
    answers = [without_times(json.loads((each / "auto.json").read_text())) for each in (out, calm)]
    return differences(*answers, name="auto.json") + unequal_runs(out / "runs", calm / "runs")


def kill_whole(process: subprocess.Popen[bytes]) -> None:
    """The command and its workers at once, as where power is lost."""
    for pid in (process.pid, *descendants(process.pid)):
        os.kill(pid, signal.SIGKILL)
    process.wait()


def disturbed(log: Path, root: Path, calm: Path, kills: int, seconds: float, draws: random.Random) -> None:
    """Kill and call again, until there were so many kills and the last search is at its end."""
    killed = searches = 0
    while killed < kills:
        out, searches = root / f"search-{searches}", searches + 1
        while True:
            process = start(log, out)
            try:
                process.wait(draws.uniform(0.05, 0.7) * seconds if killed < kills else TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                kill_whole(process)
                killed += 1
                continue
            if process.returncode != 0:
                raise SystemExit(f"the search ended with {process.returncode} after {killed} kills")
            break
        if bad := unequal(out, calm):
            raise SystemExit(f"after {killed} kills: {'; '.join(bad)}")
        print(f"{killed} kills, {searches} searches: all as undisturbed", flush=True)


def lose_a_node(log: Path, out: Path, calm: Path, when: str) -> None:
    """Kill one of two nodes as soon as files of this pattern are there."""
    from ray_faults import start_cluster

    cluster = start_cluster()
    process = start(log, out, "--ray", cluster.address)
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not list(out.glob(when)):
        if process.poll() is not None or time.monotonic() > deadline:
            raise SystemExit(f"no file {when} before the end")
        time.sleep(0.05)
    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
    code = process.wait(TIMEOUT_SECONDS)
    cluster.shutdown()
    if code != 0:
        raise SystemExit(f"the search ended with {code} after it lost a node")
    answers = [json.loads((each / "auto.json").read_text()) for each in (out, calm)]
    names = [sorted(each["name"] for each in found["judgement"]["policies"]) for found in answers]
    values = [
        rounded({each["name"]: each["value"] for each in found["judgement"]["policies"]}) for found in answers
    ]
    bad = unequal_runs(out / "runs", calm / "runs") + differences(*values, name="values")
    if bad or names[0] != names[1]:
        raise SystemExit(f"a node lost at {when}: {'; '.join(bad)}")
    print(f"a node lost at {when}: trainings bit for bit, values to two digits as without a cluster")


def main() -> int:
    if sys.argv[1:2] == ["--child"]:
        return small_auto(sys.argv[2:])
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--ray", action="store_true", help="kill nodes of a cluster instead")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        log, calm = root / "log.csv", root / "calm"
        write_log(log, runs=RUNS, seed=0)
        began = time.monotonic()
        if start(log, calm).wait() != 0:
            raise SystemExit("the search fails undisturbed")
        if options.ray:
            for name, when in (
                ("trainings", "runs/lion/*/checkpoints/*.safetensors"),
                ("judging", "fits/*/values.safetensors"),
            ):
                lose_a_node(log, root / name, calm, when)
            return 0
        draws = random.Random(options.seed)
        disturbed(log, root, calm, options.kills, time.monotonic() - began, draws)
    return 0


if __name__ == "__main__":
    sys.exit(main())
