"""Traces: what the package gave, number by number, when it was last known to be right.

    PYTHONPATH=src python tests/support/make_traces.py            write all traces anew
    PYTHONPATH=src python tests/support/make_traces.py updates    write one of them

`tests/package/test_traces.py` makes every trace again and compares it with
`tests/fixtures/traces/NAME.json`. A trace may be written anew only in a commit that changes its numbers on
purpose and says so (another default, another formula, another order of random draws, a field more). It may
not be written anew because code was moved, merged, renamed or made faster: there a difference is a mistake.

Only the public surface is used here, so that the traces outlive what is behind it.
"""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import rl_training
from rl_training import TrainConfig, TransitionDataset, algorithms, data, models
from rl_training.cli import main
from rl_training.core.spaces import Choice, Spaces

FIXTURES = Path(__file__).parents[1] / "fixtures" / "traces"
VOLATILE = ("time", "updates_per_second", "steps_per_second", "wall_time_seconds", "seconds", "fingerprint")
"""Keys whose values no two machines share; a fingerprint is of bits, and these round differently."""

SETTINGS: dict[str, Any] = {"hidden_sizes": [16, 16], "batch_size": 16, "compile": False, "eval_interval": 0}
RANDOM_DATA: dict[str, Any] = {"dataset_kind": "random", "dataset_size": 220, "dataset_seed": 3}
SHORT: dict[str, Any] = {"max_episode_steps": 30}
OBSERVATIONS = np.array(
    [[1.0, 0.0, 0.0], [0.6, -0.8, 2.5], [-0.9, 0.4, -7.0], [30.0, -20.0, 90.0]], np.float32
)
"""Of Pendulum-v1; the last is nothing that it shows."""


# ---- data


def arrays(
    lengths: tuple[int, ...] = (5, 3, 6, 1, 4), seed: int = 0, *, optional: bool = True
) -> dict[str, Any]:
    """Episodes with every field that a log may have; the first and fourth terminate, the others are cut."""
    draws = np.random.default_rng(seed)
    rows = sum(lengths)
    ends = np.isin(np.arange(rows), np.cumsum(lengths) - 1)
    terminated = np.isin(np.arange(rows), np.cumsum(lengths)[[0, 3]] - 1)
    obs, final = draws.normal(size=(2, rows, 3)).astype(np.float32)
    columns: dict[str, Any] = {
        "observations": obs,
        "actions": draws.uniform(-0.95, 0.95, size=(rows, 2)).astype(np.float32),
        "rewards": draws.normal(size=rows).astype(np.float32),
        "next_observations": np.where(ends[:, None], final, np.roll(obs, -1, axis=0)),
        "terminals": terminated,
        "timeouts": ends & ~terminated,
    }
    if optional:
        columns["next_actions"] = draws.uniform(-0.95, 0.95, size=(rows, 2)).astype(np.float32)
        columns["returns_to_go"] = draws.normal(size=rows).astype(np.float32)
        columns["durations"] = draws.uniform(0.5, 2.0, size=rows).astype(np.float32)
        columns["behavior_logprobs"] = draws.normal(size=rows).astype(np.float32)
    return columns


def drawn(dataset: TransitionDataset, seed: int = 1, size: int = 6) -> dict[str, Any]:
    return plain(dataset.sample(size, generator=torch.Generator().manual_seed(seed)))


def batches(folder: Path) -> dict[str, Any]:
    """Rows that a seed draws: from every kind of dataset, with all optional fields, mixed, from disk."""
    whole = TransitionDataset.from_dict(arrays())
    bare = TransitionDataset.from_dict(arrays(seed=1, optional=False))
    np.savez(folder / "log.npz", **arrays())
    os.environ["RL_TRAINING_CACHE"] = str(folder / "cache")
    read = partial(data.load_transition_dataset, dataset_path=folder / "log.npz")
    from_memory, from_disk = drawn(read()), drawn(read(in_memory=False))
    assert from_memory == from_disk
    mixed = data.mix_transition_datasets([whole, bare], weights=[1.0, 3.0], total_size=24, seed=5)
    return {
        "all fields": drawn(whole),
        "standard fields": drawn(bare),
        "file": from_memory,
        "mix": drawn(mixed),
        "mix of all fields": drawn(data.mix_transition_datasets([whole, whole], rows=[2, 3], seed=6)),
        "rewards": drawn(
            whole.with_reward_transform(scale=2.0, shift=0.5, clip=1.5, returns_to_go_gamma=0.9)
        ),
        "returns-to-go": drawn(bare.with_discounted_returns_to_go(0.9)),
        "returns-to-go by time": drawn(whole.with_discounted_returns_to_go(0.9, by_time=True)),
        "n-step": drawn(data.with_n_step(whole, 3, 0.9)),
        "best episodes": drawn(data.best_episodes(bare, 0.4)),
        "returns": plain(
            data.compute_discounted_returns_to_go(
                [1.0, 2.0, 3.0, 4.0],
                [False, True, False, False],
                0.5,
                truncations=[False, False, True, False],
            )
        ),
        "mapping of names": table_batch(folder),
    }


def table_batch(folder: Path) -> dict[str, Any]:
    """From a table with names of its own, gaps in time and empty cells."""
    dataset = data.load_transition_dataset(
        dataset_path=write_table(folder), columns=COLUMNS, max_gap=10.0, missing_values="hold"
    )
    return {"rows": len(dataset), "episode ends": plain(dataset.episode_ends()), "batch": drawn(dataset)}


COLUMNS = {
    "observations": ["level", "inflow"],
    "actions": ["valve"],
    "reward": "score",
    "episode": "run",
    "time": "time",
    "terminated": "trip",
}


def write_table(folder: Path) -> Path:
    """A small plant: three runs, a gap, a trip, two empty cells."""
    draws = np.random.default_rng(8)
    lines, seconds = ["run,time,level,inflow,valve,score,trip,note"], 0.0
    for row in range(36):
        run, (level, inflow), valve = row // 12, draws.normal(size=2), draws.uniform(0, 100)
        seconds += 60.0 if row == 5 else 2.0
        shown = "" if row == 7 else f"{level:.3f}"
        opened = "" if row == 20 else f"{valve:.2f}"
        lines.append(f"{run},{seconds:g},{shown},{inflow:.3f},{opened},{-abs(level):.3f},{int(row == 23)},ok")
    path = folder / "plant.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


# ---- learners

LEARNERS: dict[str, tuple[str, dict[str, Any]]] = {
    "SAC": ("SAC", {}),
    "TQC": ("TQC", {}),
    "REDQ": ("REDQ", {"policy_delay": 2}),
    "TD3": ("TD3", {"policy_delay": 2}),
    "BC": ("BC", {}),
    "TD3BC": ("TD3", {"policy_delay": 2}),
    "AWAC": ("AWAC", {}),
    "CRR": ("SAC", {"n_action_samples": 3}),
    "IQL": ("IQL", {}),
    "CAPS": ("CAPS", {}),
    "CQL": ("SAC", {"num_cql_samples": 3}),
    "CalQL": ("SAC", {"num_cql_samples": 3}),
    "ReBRAC": ("ReBRAC", {"policy_delay": 2}),
    "EDAC": ("EDAC", {}),
    "FQL": ("FQL", {"flow_steps": 3}),
    "LION": ("LION", {"model_updates": 1, "behavior_updates": 1, "horizon": 3, "rollouts": 8}),
    "MOPO": ("ModelBasedSAC", {"model_updates": 1}),
    "MOBILE": ("ModelBasedSAC", {"model_updates": 1, "penalty_samples": 2}),
    "DQN": ("DQN", {"td_loss": "square"}),
    "DiscreteCQL": ("DQN", {"num_critics": 1}),
}
"""Learner -> its model and own keywords."""

UPDATES = 3
CHOICES = Spaces.of(3, [Choice((0.0, 1.0, 2.0)), Choice((-1.0, 0.0, 1.0))])
"""For learners that take choices alone."""


def updates(folder: Path) -> dict[str, Any]:
    """Metrics of three updates and sums of the weights after them, of every algorithm."""
    rows = TransitionDataset.from_dict(arrays(lengths=(30, 20, 30, 20)))
    found = {}
    for name, (model_name, keywords) in LEARNERS.items():
        generator, levels = torch.Generator().manual_seed(2), model_name == "DQN"
        sizes = {"action_dim": 6, "spaces": CHOICES} if levels else {"action_dim": 2}
        model = getattr(models, f"MLP{model_name}Model")(
            3, hidden_sizes=(16, 16), generator=generator, **sizes
        )
        learner = getattr(algorithms, name)(model=model, seed=4, **keywords)
        draws = torch.Generator().manual_seed(9)
        told = []
        for step in range(UPDATES):
            batch = rows.sample(16, generator=draws)
            if levels:
                batch["actions"] = torch.from_numpy(CHOICES.random(batch["actions"].numpy()))
            if "episodes" in learner.needs:
                batch["episodes"] = torch.arange(16.0) // 4
            if "costs" in learner.needs:
                batch["costs"] = (batch["next_obs"][:, :1] > 0.0).float()
            told.append(dict(learner.update(batch, global_step=step).metrics))
        weights = [parameter.detach().double() for parameter in model.parameters()]
        found[name] = {
            "metrics": plain(told),
            "weights": plain(sum(weight.numel() for weight in weights)),
            "sum": plain(sum(weight.sum() for weight in weights)),
            "sum of squares": plain(sum(weight.square().sum() for weight in weights)),
        }
    return found


# ---- runs


def config(algo: str, folder: Path, **changes: Any) -> TrainConfig:
    values: dict[str, Any] = {
        "algo": algo,
        "env_id": "Pendulum-v1",
        "env_kwargs": SHORT,
        "seed": 7,
        "total_timesteps": 40,
        "output_dir": str(folder / "runs"),
        "device": "cpu",
        "eval_episodes": 2,
        "log_interval": 10,
        "checkpoint_interval": 20,
        **changes,
    }
    values["algo_kwargs"] = {**SETTINGS, **changes.get("algo_kwargs", {})}
    return TrainConfig(**values)


def trained(algo: str, folder: Path, **changes: Any) -> Any:
    """A managed object of the class that has this algorithm."""
    agent = getattr(rl_training, CLASSES[algo])(config(algo, folder, **changes))
    agent.learn(quiet=True)
    return agent


CLASSES = {"iql": "IQL", "sac": "SAC", "cal_ql": "CalQL", "td3_bc": "TD3BC", "fql": "FQL", "bc": "BC"}


def told(run_dir: Path) -> list[dict[str, Any]]:
    """The rows of metrics.jsonl."""
    lines = (run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    return [without_volatile(json.loads(line)) for line in lines]


def without_volatile(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: plain(value) for name, value in values.items() if name not in VOLATILE}


def outcome(agent: Any) -> dict[str, Any]:
    """All that a run tells: rows, summary, what its policy does and how well."""
    summary = json.loads((agent.result.run_dir / "summary.json").read_text(encoding="utf-8"))
    return {
        "metrics": told(agent.result.run_dir),
        "summary": without_volatile(summary["metrics"]),
        "actions": plain(agent.predict(OBSERVATIONS)),
        "evaluation": plain(agent.evaluate(3)),
        "checkpoints": sorted(path.name for path in (agent.result.run_dir / "checkpoints").iterdir()),
    }


def offline_run(folder: Path) -> dict[str, Any]:
    """IQL with fitted units, held-out rows, a schedule; then on from its checkpoint by hand."""
    kwargs = {
        **RANDOM_DATA,
        "normalize_observations": True,
        "reward_scale": 0.1,
        "reward_shift": 0.5,
        "validation_share": 0.2,
        "eval_interval": 20,
        "learning_rate_schedule": "cosine",
        "warmup_steps": 5,
    }
    agent = trained("iql", folder, algo_kwargs=kwargs)
    found = outcome(agent)
    summary = json.loads((agent.result.run_dir / "summary.json").read_text(encoding="utf-8"))
    found["dataset"] = without_volatile(summary["dataset"])
    assert main(["resume", "--checkpoint", str(agent.result.run_dir), "--total-timesteps", "60", "-q"]) == 0
    found["resumed"] = outcome(reloaded(agent))
    return found


def reloaded(agent: Any) -> Any:
    again = type(agent).load(agent.result.run_dir)
    again.result = agent.result
    return again


def online_run(folder: Path) -> dict[str, Any]:
    """SAC from random steps to learned ones in two environments, interrupted in the middle of episodes."""
    kwargs = {
        "learning_starts": 20,
        "buffer_capacity": 50,
        "reward_scale": 0.1,
        "train_frequency": 2,
        "gradient_updates_per_step": 1,
    }
    agent = trained("sac", folder, num_envs=2, total_timesteps=54, algo_kwargs=kwargs)
    found = outcome(agent)
    assert main(["resume", "--checkpoint", str(agent.result.run_dir), "--total-timesteps", "100", "-q"]) == 0
    found["resumed"] = outcome(reloaded(agent))
    return found


def offline_to_online_run(folder: Path) -> dict[str, Any]:
    """Cal-QL, which needs whole episodes, and TD3+BC, which explores with noise, from data into the plant."""
    going_on = {
        **RANDOM_DATA,
        "normalize_observations": True,
        "reward_scale": 0.1,
        "warmup_steps_online": 10,
        "gradient_updates_per_step": 1,
    }
    changes: dict[str, Any] = {"total_timesteps": 20, "online_timesteps": 50}
    whole = trained("cal_ql", folder, **changes, algo_kwargs={**going_on, "num_cql_samples": 3})
    noisy = trained(
        "td3_bc",
        folder,
        **changes,
        algo_kwargs={**going_on, "exploration_noise": 0.3, "offline_data": "append"},
    )
    later = trained("td3_bc", folder, total_timesteps=20, seed=3, algo_kwargs=RANDOM_DATA)
    later.finetune(timesteps=30, quiet=True, offline_data="drop", warmup_steps_online=5)
    return {"cal_ql": outcome(whole), "td3_bc": outcome(noisy), "fine-tuned": outcome(later)}


def mixed_data_run(folder: Path) -> dict[str, Any]:
    """CQL on a weighted mix of two files, with everything that prepares data; from disk as from memory."""
    for seed in (0, 1):
        np.savez(folder / f"part_{seed}.npz", **arrays(seed=seed))
    parts = [
        {"dataset_kind": "npz", "dataset_path": str(folder / f"part_{seed}.npz"), "weight": 1.0 + seed}
        for seed in (0, 1)
    ]
    kwargs: dict[str, Any] = {
        "dataset_kind": "mix",
        "dataset_parts": parts,
        "action_low": [-1.0, -2.0],
        "action_high": [1.0, 2.0],
        "normalize_observations": True,
        "normalize_reward": True,
        "reward_clip": 100.0,
        "action_clip": 0.5,
        "num_cql_samples": 3,
    }
    found = {}
    for place, in_memory in (("memory", True), ("disk", False)):
        changes = {"env_id": None, "env_kwargs": {}, "total_timesteps": 20}
        agent = rl_training.CQL(
            config("cql", folder / place, **changes, algo_kwargs={**kwargs, "dataset_in_memory": in_memory})
        )
        agent.learn(quiet=True)
        found[place] = {
            "metrics": told(agent.result.run_dir),
            "actions": plain(agent.predict(OBSERVATIONS[:3])),
        }
    assert found["memory"] == found["disk"]
    return found["disk"]


def seeds_as_one_batch(folder: Path) -> dict[str, Any]:
    """Two seeds trained together; each has a directory of its own."""
    changes: dict[str, Any] = {"total_timesteps": 20, "seeds": [3, 4]}
    rl_training.TD3BC(config("td3_bc", folder, **changes, algo_kwargs=RANDOM_DATA)).learn(quiet=True)
    return {run.name: told(run) for run in sorted((folder / "runs").iterdir()) if run.is_dir()}


# ---- what becomes of a policy


def exports(folder: Path) -> dict[str, Any]:
    """What exported files do with fixed observations, in every format, with means and spreads."""
    found: dict[str, Any] = {}
    for algo in ("iql", "td3_bc", "fql"):
        kwargs = {**RANDOM_DATA, "normalize_observations": True}
        agent = trained(algo, folder, total_timesteps=20, algo_kwargs=kwargs)
        own = found[algo] = {"live": plain(agent.predict(OBSERVATIONS))}
        for suffix in ("onnx", "pt", "safetensors"):
            path = agent.export(folder / f"{algo}.{suffix}", distribution=algo == "iql" and suffix != "pt")
            own[suffix] = file_outputs(path, suffix)
        own["evaluation"] = plain(printed_json("evaluate", "--checkpoint", str(path), "--episodes", "2"))
    return found


def file_outputs(path: Path, suffix: str) -> dict[str, Any]:
    if suffix == "pt":
        result = torch.jit.load(path)(torch.from_numpy(OBSERVATIONS))
        return {"action": plain(result[0] if isinstance(result, tuple) else result)}
    policy = rl_training.load_policy(path)
    found = {"action": plain(policy.predict(OBSERVATIONS))}
    if policy.has_distribution:
        mean, log_std = policy.distribution(OBSERVATIONS)
        found |= {"mean": plain(mean), "log_std": plain(log_std)}
    return found


def predictions_over_a_file(folder: Path) -> dict[str, Any]:
    """A policy of a table's columns, asked about that table: by name, in another order, with empty cells."""
    table = write_table(folder)
    kwargs = {"dataset_path": str(table), "columns": COLUMNS, "missing_values": "hold", "max_gap": 10.0}
    kwargs |= {"action_low": [0.0], "action_high": [100.0]}
    agent = trained("bc", folder, env_id=None, env_kwargs={}, total_timesteps=20, algo_kwargs=kwargs)
    run, out = str(agent.result.run_dir), folder / "actions.csv"
    options = ["--obs-file", str(table), "--out", str(out), "--missing-values", "hold"]
    assert main(["predict", "--checkpoint", run, *options]) == 0
    header, *rows = out.read_text(encoding="utf-8").splitlines()
    single = printed_json("predict", "--checkpoint", run, "--obs", "0.5, -0.25")
    return {
        "header": header,
        "rows": [[float(cell) for cell in row.split(",")] for row in rows],
        "single": single,
    }


def guard(folder: Path) -> dict[str, Any]:
    """What a guard finds new, what it says of itself, and what is played in a loop."""
    agent = trained("td3_bc", folder, total_timesteps=20, algo_kwargs=RANDOM_DATA)
    agent.make_guard(centres=8, fallback="hold", seed=2)
    path, live = agent.export(folder / "guarded.safetensors"), agent.predict_guarded(OBSERVATIONS)
    deployed = rl_training.load_policy(path)
    loop = deployed.guarded()
    played = [loop.act(obs) for obs in OBSERVATIONS[[0, 3, 1, 3]]]
    agent.make_guard(centres=8, actions=True, seed=2)
    with_actions = rl_training.load_policy(agent.export(folder / "with_actions.safetensors"))
    return {
        "facts": plain(deployed.metadata["guard"]),
        "live": plain(live._asdict()),
        "loop": [plain(each._asdict()) for each in played],
        "facts with actions": plain(with_actions.metadata["guard"]),
    }


def judgement(folder: Path) -> dict[str, Any]:
    """Judging policies of known order, with little fitting: every number, verdict and reason."""
    draws = np.random.default_rng(0)
    episodes, length = 60, 8
    obs = np.zeros((episodes, length + 1, 1))
    actions = draws.uniform(-1, 1, (episodes, length, 1))
    obs[:, 0] = draws.uniform(-1, 1, (episodes, 1))
    for step in range(length):
        obs[:, step + 1] = 0.5 * obs[:, step] + 0.5 * actions[:, step]
    log = TransitionDataset(
        obs[:, :-1].reshape(-1, 1),
        actions.reshape(-1, 1),
        -(obs[:, :-1] ** 2 + 0.1 * actions**2).reshape(-1),
        obs[:, 1:].reshape(-1, 1),
        np.zeros(episodes * length),
        truncations=np.arange(episodes * length) % length == length - 1,
    )
    policies = {"good": Proportional(0.8), "bad": Proportional(-0.9), "far": Proportional(-30.0)}
    few = {"updates": 600, "model_updates": 200, "density_updates": 200, "rollout_starts": 20, "members": 3}
    found = rl_training.judge(policies, log, gamma=0.9, seed=3, compile=False, coverage_limit=0.05, **few)
    return {"of known order": shortened(without_volatile(found.to_dict())), "of a run": judged_run(folder)}


def judged_run(folder: Path) -> Any:
    """A run judged by its own table, which it knows the columns of, beside what its critic says."""
    kwargs = {"dataset_path": str(write_table(folder)), "columns": COLUMNS, "missing_values": "hold"}
    kwargs |= {"action_low": [0.0], "action_high": [100.0]}
    agent = trained("td3_bc", folder, env_id=None, env_kwargs={}, total_timesteps=20, algo_kwargs=kwargs)
    settings = (
        "updates=40",
        "model_updates=20",
        "density_updates=20",
        "members=2",
        "model_members=2",
        "min_episodes=2",
    )
    options = [word for each in (*settings, "compile=false") for word in ("--set", each)]
    told = lines_of(
        "judge",
        str(agent.result.run_dir),
        *options,
        "--gamma",
        "0.9",
        "--json",
        str(folder / "judge.json"),
        "-q",
    )
    found = json.loads((folder / "judge.json").read_text(encoding="utf-8"))
    return {"text": told, "json": shortened(without_volatile(found))}


def shortened(value: Any) -> Any:
    """Long lists by a few of their numbers: the first, the last, how many there are."""
    if isinstance(value, dict):
        return {name: shortened(each) for name, each in value.items()}
    if isinstance(value, list):
        short = value if len(value) <= LONG else [len(value), *value[:3], *value[-3:]]
        return [shortened(each) for each in short]
    return value


LONG = 20


class Proportional:
    """a = -k s."""

    def __init__(self, k: float) -> None:
        self.k = k

    def predict(self, obs: np.ndarray) -> np.ndarray:
        return (-self.k * np.asarray(obs)).astype(np.float32)


# ---- looking at data


def inspection(folder: Path) -> dict[str, Any]:
    """What is said of a table: as it is found, and with its columns named."""
    table = str(write_table(folder))
    named = ["--obs", "level,inflow", "--action", "valve", "--reward", "score", "--episode", "run"]
    named += ["--time", "time", "--terminated", "trip", "--max-gap", "10"]
    return {
        "guess": printed_json("data", "inspect", table, "--json"),
        "named": plain(printed_json("data", "inspect", table, *named, "--json", "--no-plot")),
        "text": lines_of("data", "inspect", table, *named, "--no-plot"),
        "guess as text": lines_of("data", "inspect", table),
    }


def collection(folder: Path) -> dict[str, Any]:
    """Rows that a seed collects: random ones, and those of a policy with noise."""
    agent = trained("td3_bc", folder, total_timesteps=10, algo_kwargs=RANDOM_DATA)
    chance, policy = folder / "chance.npz", folder / "policy.npz"
    collect = ["data", "collect", "--rows", "35", "--seed", "3", "-q"]
    where = ["--env-id", "Pendulum-v1", "--env-kwargs", "{max_episode_steps: 30}"]
    rolled = ["--checkpoint", str(agent.result.run_dir), "--noise", "0.2", "--random-share", "0.25"]
    assert main([*collect, *where, "--out", str(chance)]) == 0
    assert main([*collect, *rolled, "--out", str(policy)]) == 0
    return {"random": collected(chance), "policy": collected(policy)}


def collected(path: Path) -> dict[str, Any]:
    """Some rows of each column, and its sum."""
    with np.load(path) as stored:
        names = ("observations", "actions", "rewards", "next_observations", "terminals", "timeouts")
        columns = {name: stored[name] for name in names}
    return {
        name: {
            "shape": list(values.shape),
            "rows": plain(values[[0, 1, 29, 30, 34]]),
            "sum": plain(values.sum()),
        }
        for name, values in columns.items()
    }


TRACES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "batches": batches,
    "updates": updates,
    "offline_run": offline_run,
    "online_run": online_run,
    "offline_to_online_run": offline_to_online_run,
    "mixed_data_run": mixed_data_run,
    "seeds_as_one_batch": seeds_as_one_batch,
    "exports": exports,
    "predictions": predictions_over_a_file,
    "guard": guard,
    "judgement": judgement,
    "inspection": inspection,
    "collection": collection,
}


# ---- writing and comparing


def printed(*arguments: str) -> str:
    """What a command prints."""
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        assert main(list(arguments)) == 0, arguments
    return shown.getvalue()


def lines_of(*arguments: str) -> list[str]:
    """The words of what it prints, without the frames and spaces of tables."""
    lines = (" ".join(line.replace("─", " ").split()) for line in printed(*arguments).splitlines())
    return [line for line in lines if line]


def printed_json(*arguments: str) -> Any:
    return json.loads(printed(*arguments))


def plain(value: Any) -> Any:
    """Plain data with as many digits as single precision has."""
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        return plain(value.tolist())
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    return float(f"{value:.9g}") if isinstance(value, float) and math.isfinite(value) else value


def make(name: str, folder: Path) -> Any:
    """One trace, as its file would hold it; the folder's own name does not appear in it."""
    torch.set_num_threads(1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of rows held, fields left out: the trace shows what became of them
        text = json.dumps(TRACES[name](folder))
    return json.loads(text.replace(str(folder), "FOLDER"))


@contextlib.contextmanager
def own_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def write(name: str) -> None:
    with own_folder() as folder:
        found = make(name, folder)
    FIXTURES.mkdir(parents=True, exist_ok=True)
    text = json.dumps(found, indent=1, allow_nan=True)
    (FIXTURES / f"{name}.json").write_text(text + "\n", encoding="utf-8")
    print(f"{name}: {len(text)} bytes")


if __name__ == "__main__":
    for chosen in sys.argv[1:] or TRACES:
        write(chosen)
