"""DOPE's policies on MuJoCo, read from their ONNX files, the logs they leave and what each truly earns.

Fu et al. 2021 (arXiv:2103.16596) published eleven snapshots of one training of SAC for each task. A file
`<task>_online_<n>.sampler.onnx` holds two hidden layers, a mean and a log std; actions are drawn from the
squashed Gaussian. Only its weights are read, with numpy, so that nothing else is needed beside any library.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import numpy.typing as npt

FloatArray = npt.NDArray[np.float32]

TASKS = {"halfcheetah": "HalfCheetah-v5", "hopper": "Hopper-v5"}
BEHAVIOUR = 5
"""Number of the policy that leaves the log `medium`; `mixed` is left by all up to it."""

UNIFORM = -1
"""Stands for uniform actions in the column `policy` of a log."""

LONGEST = 1000
LONG_ENOUGH = 600
"""Steps of a true episode: 0.99^600 is 0.002, so that what would follow hardly counts."""

SIDE_BY_SIDE = 25
LAYERS = ("fc0", "fc1", "last_fc", "last_fc_log_std")
LOG_STD = (-5.0, 2.0)


@dataclass(frozen=True)
class DopePolicy:
    """A squashed Gaussian whose mean and log std are two heads of a small network."""

    weights: Mapping[str, FloatArray]

    @property
    def sizes(self) -> tuple[int, int]:
        """Numbers of an observation and of an action."""
        return self.weights["fc0.weight"].shape[1], len(self.weights["last_fc.bias"])

    def distribution(self, obs: npt.ArrayLike) -> tuple[FloatArray, FloatArray]:
        """Mean and log std before tanh."""
        hidden = np.asarray(obs, dtype=np.float32)
        for name in LAYERS[:2]:
            hidden = np.maximum(self.layer(name, hidden), 0.0)
        return self.layer("last_fc", hidden), np.clip(self.layer("last_fc_log_std", hidden), *LOG_STD)

    def layer(self, name: str, values: FloatArray) -> FloatArray:
        out: FloatArray = values @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        return out

    def predict(self, obs: npt.ArrayLike) -> FloatArray:
        """Without a draw."""
        acted: FloatArray = np.tanh(self.distribution(obs)[0])
        return acted

    def draw(self, obs: npt.ArrayLike, draws: np.random.Generator) -> FloatArray:
        mean, log_std = self.distribution(obs)
        acted: FloatArray = np.tanh(mean + np.exp(log_std) * draws.standard_normal(mean.shape))
        return acted.astype(np.float32)


def read_policies(folder: Path, task: str) -> dict[str, DopePolicy]:
    """Every snapshot of a task, in the order of training."""
    files = sorted(folder.rglob(f"{task}_online_*.sampler.onnx"), key=lambda file: number_of(file.name))
    if not files:
        raise SystemExit(f"{folder} holds no file {task}_online_<n>.sampler.onnx")
    return {f"online-{number_of(file.name)}": read_policy(file) for file in files}


def number_of(name: str) -> int:
    return int(name.split("_")[-1].partition(".")[0])


def read_policy(file: Path) -> DopePolicy:
    import onnx
    from onnx import numpy_helper

    found = {each.name: numpy_helper.to_array(each) for each in onnx.load(file).graph.initializer}
    wanted = [f"{layer}.{part}" for layer in LAYERS for part in ("weight", "bias")]
    missing = [name for name in wanted if name not in found]
    if missing:
        raise SystemExit(f"{file} lacks {', '.join(missing)}: is it a policy of DOPE's MuJoCo tasks?")
    return DopePolicy({name: found[name].astype(np.float32) for name in wanted})


Act = Callable[[FloatArray], FloatArray]


def episodes(
    env_id: str, act: Act, starts: Sequence[int], longest: int
) -> list[tuple[list[Any], list[Any], list[float], bool]]:
    """Runs side by side, one per seed of a start: states (one more than actions), actions, rewards, ended."""
    envs = [gym.make(env_id, max_episode_steps=longest, disable_env_checker=True) for _ in starts]
    runs = [
        ([env.reset(seed=seed)[0].astype(np.float32)], [], [], False)
        for env, seed in zip(envs, starts, strict=True)
    ]
    alive = list(range(len(envs)))
    while alive:
        actions = act(np.stack([runs[index][0][-1] for index in alive]))
        going_on = []
        for index, action in zip(alive, actions, strict=True):
            seen, rewards, terminated, truncated, _ = envs[index].step(action)
            states, acted, earned, _ = runs[index]
            states.append(seen.astype(np.float32))
            acted.append(action)
            earned.append(float(rewards))
            runs[index] = (states, acted, earned, terminated)
            if not (terminated or truncated):
                going_on.append(index)
        alive = going_on
    for env in envs:
        env.close()
    return runs


def acting(policy: DopePolicy | None, width: int, draws: np.random.Generator) -> Act:
    """As the policy draws its actions; uniformly without one."""
    if policy is None:
        return lambda obs: draws.uniform(-1.0, 1.0, (len(obs), width)).astype(np.float32)
    return lambda obs: policy.draw(obs, draws)


def regenerated(
    task: str, kind: str, known: Mapping[str, DopePolicy], rows: int, seed: int, longest: int = LONGEST
) -> dict[str, Any]:
    """Columns of a log of about so many rows, in whole episodes, in the layout of D4RL."""
    numbered = [known[f"online-{n}"] for n in range(BEHAVIOUR + 1)]
    who = {"random": [UNIFORM], "medium": [BEHAVIOUR], "mixed": range(BEHAVIOUR + 1)}[kind]
    width, draws = numbered[0].sizes[1], np.random.default_rng([seed, 3])
    runs, acted_by, start = [], [], 100_000 * (seed + 1)
    for number in who:
        policy = None if number == UNIFORM else numbered[number]
        act, collected = acting(policy, width, draws), 0
        while collected < rows / len(who):
            missing = rows / len(who) - collected
            count = max(1, min(SIDE_BY_SIDE, round(missing / longest)))
            more = episodes(TASKS[task], act, range(start, start + count), longest)
            start += count
            runs += more
            acted_by += [number] * len(more)
            collected += sum(len(run[2]) for run in more)
    lengths = [len(run[2]) for run in runs]
    last = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(sum(lengths)), np.zeros(sum(lengths))
    for place, run in zip(last, runs, strict=True):
        (terminals if run[3] else timeouts)[place] = 1.0
    return {
        "observations": np.concatenate([run[0][:-1] for run in runs]).astype(np.float32),
        "actions": np.concatenate([run[1] for run in runs]).astype(np.float32),
        "rewards": np.concatenate([run[2] for run in runs]).astype(np.float32),
        "next_observations": np.concatenate([run[0][1:] for run in runs]).astype(np.float32),
        "terminals": terminals.astype(np.float32),
        "timeouts": timeouts.astype(np.float32),
        "policy": np.repeat(acted_by, lengths),
    }


def true_value(
    task: str, policy: DopePolicy | None, width: int, gamma: float, count: int, longest: int
) -> dict[str, float]:
    """Mean discounted return of episodes of the policy as it draws its actions, and its standard error."""
    act = acting(policy, width, np.random.default_rng(11))
    runs = episodes(TASKS[task], act, range(count), longest)
    returns = [float(np.dot(gamma ** np.arange(len(run[2])), run[2])) for run in runs]
    error = float(np.std(returns, ddof=1) / len(returns) ** 0.5)
    plain = float(np.mean([sum(run[2]) for run in runs]))
    return {"value": float(np.mean(returns)), "standard_error": error, "return": plain}
