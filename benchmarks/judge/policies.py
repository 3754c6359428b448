"""Policies of known worth for `truth.py`: trained, planted, and what each truly earns.

For one data set: snapshots of several algorithms at several ages, one trained on other data, and three that
are bad on purpose (uniformly random, one constant action, a good policy shifted by half the action range).
True values are discounted returns of episodes in the environment that are long enough for the discount to
end them, as the judge's own are. Everything made is found again in the output directory.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np

from rl_training.config.run import TrainConfig
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.data.convert import target_location
from rl_training.experiment.registry import get_algorithm_spec
from rl_training.policies.files import load_policy
from rl_training.runtime.envs import spaces_of
from rl_training.runtime.record import CollectionRequest, collect_to

RESULTS = Path(__file__).parent / "results"
GAMMA = 0.99
EPISODES = 100
LONG_ENOUGH = 600
"""Steps of a true episode: 0.99^600 is 0.002, so that what would follow hardly counts."""


@dataclass(frozen=True)
class Recipe:
    """One training and the steps at which its policy is taken."""

    algo: str
    steps: tuple[int, ...]
    settings: tuple[tuple[str, float], ...] = ()


RECIPES = {
    "td3_bc": Recipe("td3_bc", (500, 3000)),
    "bold": Recipe("td3_bc", (1000, 3000), (("alpha", 20.0),)),
    "iql": Recipe("iql", (500, 3000)),
    "bc": Recipe("bc", (500, 2000)),
    "awac": Recipe("awac", (2000,)),
}
"""`bold` hardly keeps to the data: good where the log covers much, bad where it does not."""

ON_OTHER_DATA = Recipe("td3_bc", (2000,))
WIDTHS = (64, 64)
FAST = 1e-3
"""Learning rate where more effort is made."""

PLANTED = ("uniform", "constant", "biased")
OTHER_ROWS = 5000


@dataclass(frozen=True)
class DataSet:
    name: str
    file: str
    env_id: str
    effort: int = 1
    """Times as many updates: where imitation is hard, all policies would be equally bad without."""
    share: float = 1.0
    """Of all updates and true episodes (`--share`)."""

    def recipe(self, name: str) -> Recipe:
        """One of the trainings, as long as it takes on this data."""
        plain = RECIPES[name]
        if self.effort == 1:
            return self.cut(plain)
        steps = tuple(self.effort * step for step in plain.steps)
        return self.cut(replace(plain, steps=steps, settings=(*plain.settings, ("learning_rate", FAST))))

    def cut(self, recipe: Recipe) -> Recipe:
        """The share of a training that is asked for; later snapshots stay later."""
        steps = (max(place, round(self.share * step)) for place, step in enumerate(recipe.steps, 1))
        return replace(recipe, steps=tuple(steps))

    @property
    def episodes(self) -> int:
        """How many tell what a policy truly earns."""
        return max(2, round(self.share * EPISODES))


DATA_SETS = {
    each.name: each
    for each in (
        DataSet("pendulum-random", "pendulum/pendulum_random_v1.1.0.h5", "Pendulum-v1"),
        DataSet("pendulum-replay", "pendulum/pendulum_v1.1.0.h5", "Pendulum-v1"),
        DataSet("hopper-medium-replay", "hopper-medium-replay-v0.hdf5", "Hopper-v5"),
        DataSet("halfcheetah-medium", "halfcheetah-medium-v0.hdf5", "HalfCheetah-v5", effort=3),
    )
}


def parser(
    description: str | None, results: str, sets: Sequence[str] = tuple(DATA_SETS)
) -> argparse.ArgumentParser:
    """Options that all have in common: data, budget, and the folder of `results/` that keeps what is done."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--data", type=Path, required=True, help="directory that holds the data files")
    made.add_argument("--set", nargs="*", choices=list(DATA_SETS), default=list(sets), dest="sets")
    made.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="of all updates and true episodes; a tiny one only shows that everything runs",
    )
    made.add_argument("--out", type=Path, default=RESULTS / results)
    return made


def budgeted(name: str, share: float) -> DataSet:
    """A data set with its budget; results of a share have a folder of their own."""
    whole = DATA_SETS[name]
    return whole if share == 1.0 else replace(whole, name=f"{name}-{share:g}", share=share)


def chosen(options: argparse.Namespace) -> list[DataSet]:
    """The data sets that were asked for."""
    return [budgeted(name, options.share) for name in options.sets]


class Uniform:
    """Draws afresh for every observation."""

    def __init__(self, spaces: Spaces, seed: int) -> None:
        self.spaces, self.draws = spaces, np.random.default_rng(seed)

    def predict(self, obs: FloatArray) -> FloatArray:
        return self.spaces.to_env(self.draws.uniform(-1.0, 1.0, (len(obs), self.spaces.action_dim)))


class Constant:
    """Half of the way to the upper bound, always."""

    def __init__(self, spaces: Spaces) -> None:
        self.spaces = spaces

    def predict(self, obs: FloatArray) -> FloatArray:
        return self.spaces.to_env(np.full((len(obs), self.spaces.action_dim), 0.5))


class Biased:
    """Another policy's actions plus half the action range."""

    def __init__(self, policy: Any, spaces: Spaces) -> None:
        self.policy, self.spaces = policy, spaces

    def predict(self, obs: FloatArray) -> FloatArray:
        return self.spaces.to_env(self.spaces.to_unit(self.policy.predict(obs)) + 1.0)


def train(recipe: Recipe, data: Path, env_id: str, seed: int, out: Path) -> None:
    """One run whose checkpoints hold the snapshots, unless it is there already."""
    if list(out.glob(f"*/checkpoints/step_{recipe.steps[-1]}.safetensors")):
        return
    for unfinished in out.glob("*/checkpoints"):  # of a training that was stopped on its way
        shutil.rmtree(unfinished.parent)
    settings: dict[str, Any] = {
        "dataset_kind": "hdf5",
        "dataset_path": str(data),
        "hidden_sizes": list(WIDTHS),
        "keep_checkpoints": 100,
        "save_best": False,
        "compile": False,
        "eval_interval": 0,
        "normalize_observations": True,
        **dict(recipe.settings),
    }
    config = TrainConfig(
        algo=recipe.algo,
        env_id=env_id,
        seed=seed,
        total_timesteps=recipe.steps[-1],
        output_dir=str(out),
        eval_episodes=0,
        checkpoint_interval=int(np.gcd.reduce(recipe.steps)),
        algo_kwargs=settings,
    )
    get_algorithm_spec(recipe.algo).train_fn(config, run_suffix=recipe.algo)


def snapshot(out: Path, step: int) -> Path:
    (found,) = out.glob(f"*/checkpoints/step_{step}.safetensors")
    return found


def collect_random(env_id: str, file: Path, seed: int) -> None:
    """Rows of uniformly random actions: the data of the policy that was trained on something else."""
    file.parent.mkdir(parents=True, exist_ok=True)
    request = CollectionRequest(
        env_id=env_id,
        rows=OTHER_ROWS,
        seed=seed,
        checkpoint=None,
        noise=0.0,
        random_share=0.0,
        env_kwargs={},
    )
    collect_to(target_location(str(file)), request, lambda *told, **more: None)


def policies_of(data_set: DataSet, root: Path, out: Path, seed: int) -> dict[str, Any]:
    """Name -> policy; trains what is missing."""
    policies: dict[str, Any] = {}
    for name in RECIPES:
        recipe = data_set.recipe(name)
        folder = out / f"{name}-s{seed}"
        train(recipe, root / data_set.file, data_set.env_id, seed, folder)
        policies |= {f"{name}-{step}": load_policy(snapshot(folder, step)) for step in recipe.steps}
    other = out / f"other-s{seed}"
    rows = other / "random.hdf5"
    if not rows.is_file():
        collect_random(data_set.env_id, rows, 900 + seed)
    recipe = data_set.cut(ON_OTHER_DATA)
    train(recipe, rows, data_set.env_id, seed, other)
    policies["other-data"] = load_policy(snapshot(other, recipe.steps[-1]))
    return policies


def with_planted(policies: dict[str, Any], best: str, spaces: Spaces, seed: int) -> dict[str, Any]:
    planted = (Uniform(spaces, seed), Constant(spaces), Biased(policies[best], spaces))
    return policies | dict(zip(PLANTED, planted, strict=True))


def true_value(policy: Any, data_set: DataSet, seed: int) -> dict[str, float]:
    """Mean discounted return of many episodes, stepped side by side, and its standard error."""
    count = data_set.episodes
    envs = [
        gym.make(data_set.env_id, max_episode_steps=LONG_ENOUGH, disable_env_checker=True)
        for _ in range(count)
    ]
    obs = np.stack([env.reset(seed=seed * 1000 + index)[0] for index, env in enumerate(envs)])
    returns, plain, alive, discount = np.zeros(count), np.zeros(count), np.arange(count), 1.0
    while len(alive):
        actions = policy.predict(obs[alive].astype(np.float32))
        ended = np.zeros(len(alive), dtype=bool)
        for place, index in enumerate(alive):
            obs[index], reward, terminated, truncated, _ = envs[index].step(actions[place])
            returns[index] += discount * float(reward)
            plain[index] += float(reward)
            ended[place] = terminated or truncated
        alive, discount = alive[~ended], discount * GAMMA
    for env in envs:
        env.close()
    error = float(returns.std(ddof=1) / np.sqrt(count))
    return {"value": float(returns.mean()), "standard_error": error, "return": float(plain.mean())}


def truth_of(
    data_set: DataSet, root: Path, out: Path, seed: int
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """The policies of one seed and what each truly earns, measured once and stored."""
    file = out / f"truth-s{seed}.json"
    policies = policies_of(data_set, root, out, seed)
    values: dict[str, dict[str, float]] = json.loads(file.read_text()) if file.is_file() else {}

    def measure(names: dict[str, Any]) -> None:
        for name, policy in names.items():
            if name not in values:
                values[name] = true_value(policy, data_set, seed=5000 + seed)
                file.write_text(json.dumps(values, indent=1))
                print(f"{data_set.name} seed {seed} {name}: {values[name]['value']:.1f}", flush=True)

    measure(policies)
    best = max(policies, key=lambda name: values[name]["value"])
    policies = with_planted(policies, best, spaces_of(data_set.env_id), seed)
    measure(policies)
    return policies, values
