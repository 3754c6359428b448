"""Does the judge tell the truth? Its verdicts next to what policies really earn.

    python benchmarks/judge/truth.py --data DIR [--set pendulum-random …] [--seeds 0 1] [--out DIR]
    python benchmarks/judge/truth.py --data . --set --plants tank cascade reactor arm --seeds 0 1

For each data set and seed, about a dozen policies of known worth (`policies.py`, `plants.py`) are judged by
the log alone and compared with 100 episodes each in the environment (a plant: 400 runs). Policies, true
values and judgements are kept in the output directory, so the command can be stopped and repeated (fits go on
in their middle); `--table` only prints what is there.

Columns: Spearman rank correlation of estimated and true values; regret of the first choice and of the best
of the first three; mean absolute error (all three as shares of best minus worst); share of 90 % intervals
that hold the truth, over the policies whose checks pass and over the others; planted bad policies that were
called better.

`--gaps` plants failures of coverage instead: a log of the pendulum that holds nothing but weak torques, and
policies whose torques are strong. Each of them has to be refused.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import gymnasium as gym
import numpy as np
import policies
import torch
from measures import measures, print_rows
from plants import PLANTS, Plant, policies_and_truth
from policies import GAMMA, PLANTED, DataSet, budgeted, chosen, truth_of

from rl_training.data import TransitionDataset, load_transition_dataset
from rl_training.judging import judge
from rl_training.runs.directory import write_json_atomic

METHODS = ("order", "mean of both", "headline", "fqe", "model", "wdr", "wpdis")
"""`order` is the judge's ranking: by its score."""

WEAK = 0.3
"""Largest torque of the log with gaps, as a share of what is possible."""


def judged(data_set: DataSet | Plant, options: argparse.Namespace, seed: int) -> dict[str, Any]:
    """The judgement of one seed's policies, made or found."""
    folder = options.out / data_set.name
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"judgement{options.suffix}-s{seed}.json"
    if file.is_file():
        found: dict[str, Any] = json.loads(file.read_text())
        return found
    if isinstance(data_set, Plant):
        data, _ = data_set.log(seed)
        known, truth = policies_and_truth(data_set, data, folder, seed, gamma=GAMMA, share=options.share)
    else:
        known, truth = truth_of(data_set, options.data, folder, seed)
        data = load_transition_dataset("hdf5", dataset_path=options.data / data_set.file)
    settings = json.loads(options.settings)
    kept = folder / f"fits{options.suffix}-s{seed}"
    told = judge(known, data, gamma=GAMMA, seed=seed, checkpoints=kept, **settings).to_dict()
    for policy in told["policies"]:
        del policy["evidence"]
        policy["truth"] = truth[policy["name"]]
    write_json_atomic(file, told)
    return told


def weak_log(seed: int, episodes: int = 100, length: int = 200) -> TransitionDataset:
    """Random weak torques on the pendulum."""
    env = gym.make("Pendulum-v1", max_episode_steps=length)
    draws = np.random.default_rng(seed)
    rows: list[tuple[Any, ...]] = []
    for episode in range(episodes):
        state = env.reset(seed=1000 * seed + episode)[0]
        for _ in range(length):
            action = 2.0 * draws.uniform(-WEAK, WEAK, 1).astype(np.float32)
            after, reward, *_ = env.step(action)
            rows.append((state, action, reward, after))
            state = after
    ends = np.arange(len(rows)) % length == length - 1
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    return TransitionDataset(*columns, np.zeros(len(rows)), truncations=ends)


def judge_gaps(options: argparse.Namespace, seed: int) -> None:
    """Print what is said of policies whose actions the log does not hold."""
    data_set = budgeted("pendulum-random", options.share)
    known, truth = truth_of(data_set, options.data, options.out / data_set.name, seed)
    strong = (f"bold-{data_set.recipe('bold').steps[-1]}", "constant", "biased")
    settings = json.loads(options.settings)
    told = judge({name: known[name] for name in strong}, weak_log(seed), gamma=GAMMA, seed=seed, **settings)
    for policy in told.policies:
        failed = [name for name, check in policy.checks.items() if check.outcome == "refused"]
        true = truth[policy.name]["value"]
        print(
            f"seed {seed} {policy.name}: true {true:.1f} judged {policy.value:.1f} {policy.verdict} {failed}"
        )
    write_json_atomic(options.out / f"gaps{options.suffix}-s{seed}.json", told.to_dict())


def ranked(told: dict[str, Any]) -> list[dict[str, Any]]:
    """From the one to take first, as the judge orders them."""
    return sorted(told["policies"], key=lambda each: -each["score"])


def row(name: str, told: dict[str, Any], method: str) -> dict[str, Any]:
    """The measures of one method on one data set and seed."""
    found: dict[str, Any]
    for policy in told["policies"]:  # the headline's interval is not that of a single method
        estimates = policy["estimates"]
        estimates["headline"] = {key: policy[key] for key in ("value", "low", "high")}
        mean = (estimates["fqe"]["value"] + estimates["model"]["value"]) / 2.0
        estimates["mean of both"] = {"value": mean, "low": None, "high": None}
    if method == "order":
        truth = np.array([policy["truth"]["value"] for policy in ranked(told)])
        found = measures(-np.arange(len(truth), dtype=float), truth)
        del found["error"]  # of places, not of values
        return {"data": name, "method": method, **found}
    policies = [policy for policy in told["policies"] if method in policy["estimates"]]
    truth = np.array([policy["truth"]["value"] for policy in policies])
    values = np.array([policy["estimates"][method]["value"] or np.nan for policy in policies], dtype=float)
    values = np.nan_to_num(values, nan=np.nanmin(values))
    found = {"data": name, "method": method, **measures(values, truth)}
    bounds = [policy["estimates"][method] for policy in policies]
    if all(each["low"] is not None for each in bounds):
        holds = np.array([e["low"] <= t <= e["high"] for e, t in zip(bounds, truth, strict=True)])
        passed = np.array([policy["verdict"] != "refused" for policy in policies])
        found["held, passed"] = f"{holds[passed].mean():.2f} of {passed.sum()}" if passed.any() else "–"
        found["held, refused"] = (
            f"{holds[~passed].mean():.2f} of {(~passed).sum()}" if (~passed).any() else "–"
        )
    return found


def verdicts(name: str, told: dict[str, Any]) -> dict[str, Any]:
    """What was said about good and planted policies, against the behaviour's own value."""
    behaviour = told["behaviour"]["value"]
    counts = {verdict: 0 for verdict in ("better", "worse", "indistinguishable", "refused")}
    wrong, planted_better = 0, 0
    for policy in told["policies"]:
        counts[policy["verdict"]] += 1
        gain = policy["truth"]["value"] - behaviour
        wrong += (policy["verdict"] == "better" and gain < 0) or (policy["verdict"] == "worse" and gain > 0)
        planted_better += policy["name"] in PLANTED and policy["verdict"] == "better"
    first = ranked(told)[0]
    truth = [policy["truth"]["value"] for policy in told["policies"]]
    told_counts = " / ".join(str(count) for count in counts.values())
    return {
        "data": name,
        "first choice": first["name"],
        "its regret": (max(truth) - first["truth"]["value"]) / (max(truth) - min(truth)),
        " / ".join(counts): told_counts,
        "wrong side": wrong,
        "planted called better": planted_better,
        "truly better, refused": good_refused(told),
    }


def good_refused(told: dict[str, Any]) -> str:
    """Of the policies that are truly better than the behaviour is said to be, how many got no answer."""
    own = told["behaviour"]["value"]
    good = [policy for policy in told["policies"] if policy["truth"]["value"] > own]
    return f"{sum(policy['verdict'] == 'refused' for policy in good)} of {len(good)}"


def print_policies(name: str, told: dict[str, Any]) -> None:
    own = told["behaviour"]
    print(
        f"{name}: behaviour {own['value']:.1f} [{own['low']:.1f}, {own['high']:.1f}], {told['seconds']:.0f} s"
    )
    for policy in sorted(told["policies"], key=lambda each: -each["truth"]["value"]):
        refusals = [key for key, check in policy["checks"].items() if check["outcome"] == "refused"]
        model = policy["estimates"].get("model", {"value": float("nan")})["value"]
        print(
            f"  {policy['name']:14s} true {policy['truth']['value']:8.1f}  fqe {policy['value']:8.1f} "
            f"[{policy['low']:8.1f}, {policy['high']:8.1f}]  model {model:8.1f}  {policy['verdict']:17s} "
            + ", ".join(refusals)
        )


def main() -> None:
    parser = policies.parser(__doc__, results="truth")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1])
    parser.add_argument("--plants", nargs="*", default=[], choices=list(PLANTS), help="plants to add")
    parser.add_argument("--settings", default="{}", help="settings of the judgement, as JSON")
    parser.add_argument("--suffix", default="", help="keeps judgements of other settings apart")
    parser.add_argument("--policies-only", action="store_true", help="train and measure them, judge nothing")
    parser.add_argument(
        "--gaps", action="store_true", help="judge policies on a log that does not cover them"
    )
    parser.add_argument("--table", action="store_true", help="print what is there, judge nothing")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows, said = [], []
    for seed in options.seeds:
        if options.gaps:
            judge_gaps(options, seed)
            continue
        for data_set in (*chosen(options), *(PLANTS[name]() for name in options.plants)):
            name = data_set.name
            if options.policies_only and not isinstance(data_set, Plant):
                truth_of(data_set, options.data, options.out / name, seed)
                continue
            file = options.out / name / f"judgement{options.suffix}-s{seed}.json"
            if options.table and not file.is_file():
                continue
            told = judged(data_set, options, seed)
            made = told["policies"][0]["estimates"].keys() | {"order", "mean of both", "headline"}
            rows += [row(f"{name} {seed}", told, method) for method in METHODS if method in made]
            said.append(verdicts(f"{name} {seed}", told))
            print_policies(f"{name} seed {seed}", told)
    if not rows:
        return
    print_rows(rows)
    print_rows(said)
    for method in METHODS:
        mine = [each for each in rows if each["method"] == method]
        if not mine:
            continue
        means = {
            key: float(np.mean([each[key] for each in mine]))
            for key in ("spearman", "regret@1", "error")
            if key in mine[0]
        }
        print(method, {key: round(value, 3) for key, value in means.items()})


if __name__ == "__main__":
    main()
