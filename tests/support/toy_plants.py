"""Logs of small plants that are right, of many kinds, and the same with a mistake that nobody marked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.demo import plant as tank

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Rows:
    """Rows of equally long episodes, `[episode, row, column]`; `kept` are the rows that an episode has."""

    obs: Array
    actions: Array
    rewards: Array
    terminated: npt.NDArray[np.bool_] | None = None
    kept: npt.NDArray[np.int64] | None = None
    names: tuple[str, ...] | None = None
    actors: tuple[str, ...] | None = None

    def log(self, *, lenient: bool = False) -> EpisodeLog:
        episodes, steps = self.rewards.shape
        lengths = np.full(episodes, steps) if self.kept is None else self.kept
        there = np.arange(steps) < lengths[:, None]
        ended = np.zeros((episodes, steps), dtype=bool)
        ended[np.arange(episodes), lengths - 1] = True
        failed = np.zeros_like(ended) if self.terminated is None else self.terminated[:, None] & ended
        columns = {
            "obs": self.obs[there],
            "actions": self.actions[there],
            "rewards": self.rewards[there],
            "terminated": failed[there],
            "truncated": (ended & ~failed)[there],
        }
        info = DataInfo("toy", observation_names=self.names, action_names=self.actors)
        return EpisodeLog.build(columns, info=info, lenient=lenient)


def tank_rows(
    seed: int = 0, runs: int = 80, *, delay: int = 0, hide: tuple[int, ...] = (), slow: float = 0.0
) -> Rows:
    """The plant of the demo; what the operators set arrives `delay` minutes later, columns may be hidden.

    Where their hands are `slow`, so much of what they do by chance goes on from one minute to the next.
    """
    draws = np.random.default_rng(seed)
    readings = tank.start(runs, draws)
    on_duty = np.arange(runs) % len(tank.OPERATORS)
    waiting = [tank.OPERATORS[0].meant(readings)] * delay
    chance = np.zeros((runs, 2))
    obs, actions, rewards = [], [], []
    for _ in range(tank.MINUTES):
        if slow:
            chance = slow * chance + np.sqrt(1.0 - slow**2) * draws.normal(0.0, 15.0, chance.shape)
            meant = np.stack([operator.meant(readings) for operator in tank.OPERATORS])
            everybody = np.clip(meant + chance, 0.0, 100.0)
        else:
            everybody = np.stack([operator.set_by_hand(readings, draws) for operator in tank.OPERATORS])
        settings = everybody[on_duty, np.arange(runs)]
        waiting.append(settings)
        obs.append(readings)
        actions.append(settings)
        readings, score = tank.step(readings, waiting.pop(0), draws)
        rewards.append(score)
    shown = [index for index in range(3) if index not in hide]
    stacked = [np.stack(each, axis=1) for each in (obs, actions, rewards)]
    return Rows(stacked[0][:, :, shown], stacked[1], stacked[2])


Acts = Callable[[Array, np.random.Generator], Array]
"""Observations -> actions, of many episodes at once."""


def linear_rows(
    act: Acts,
    seed: int = 0,
    *,
    runs: int = 60,
    steps: int = 100,
    delay: int = 0,
    noise: float = 0.05,
    reward: Callable[[Array, Array, Array], Array] | None = None,
    load: Callable[[np.random.Generator, int, int], Array] | None = None,
    gain: float = 0.4,
    clip: float = np.inf,
    spread: float = 1.0,
) -> Rows:
    """Two masses on one action: x' = A x + b a + load + noise."""
    draws = np.random.default_rng(seed)
    dynamics = np.array([[0.95, 0.15], [-0.1, 0.85]])
    state = spread * draws.normal(size=(runs, 2))
    loads = np.zeros((runs, steps)) if load is None else load(draws, runs, steps)
    waiting = [np.zeros((runs, 1))] * delay
    obs, actions, rewards = [], [], []
    for step in range(steps):
        action = np.clip(act(state, draws), -3, 3)
        waiting.append(action)
        after = (
            state @ dynamics.T
            + waiting.pop(0) * np.array([0.0, gain])
            + noise * draws.normal(size=state.shape)
        )
        after = np.clip(after + loads[:, step, None] * np.array([0.0, 1.0]), -clip, clip)
        obs.append(state)
        actions.append(action)
        cost = (state**2).sum(axis=1) + 0.3 * action[:, 0] ** 2
        rewards.append(-cost if reward is None else reward(state, action, after))
        state = after
    return Rows(*(np.stack(each, axis=1) for each in (obs, actions, rewards)))


def by_chance(state: Array, draws: np.random.Generator) -> Array:
    return draws.uniform(-1, 1, (len(state), 1))


def by_rule(state: Array, draws: np.random.Generator, noise: float = 0.3) -> Array:
    answer: Array = state @ np.array([[-0.3], [-0.8]]) + noise * draws.normal(size=(len(state), 1))
    return answer


def switched(state: Array, draws: np.random.Generator) -> Array:
    answer: Array = np.where(state[:, 1:] + 0.2 * draws.normal(size=(len(state), 1)) > 0, -1.0, 1.0)
    return answer


class Slow:
    """An operator whose hand moves little from row to row."""

    def __init__(self) -> None:
        self.last: Array | None = None

    def __call__(self, state: Array, draws: np.random.Generator) -> Array:
        last = np.zeros((len(state), 1)) if self.last is None else self.last
        self.last = 0.9 * last + 0.1 * by_rule(state, draws) + 0.1 * draws.normal(size=last.shape)
        return self.last


def steady_load(draws: np.random.Generator, runs: int, steps: int) -> Array:
    """Another load in every episode."""
    return np.repeat(0.15 * draws.normal(size=(runs, 1)), steps, axis=1)


def movement_counts(state: Array, action: Array, after: Array) -> Array:
    answer: Array = -(after**2).sum(axis=1) - np.abs(action[:, 0])
    return answer


def cut_by_chance(rows: Rows) -> Rows:
    episodes, steps = rows.rewards.shape
    return replace(rows, kept=np.random.default_rng(9).integers(20, steps, episodes))


def ended_by_trips(rows: Rows, limit: float = 1.2) -> Rows:
    """Episodes end where the first column passes a limit, and say so."""
    beyond = np.abs(rows.obs[:, :, 0]) > limit
    tripped = beyond[:, 5:].any(axis=1)
    lengths = np.where(tripped, 6 + beyond[:, 5:].argmax(axis=1), rows.rewards.shape[1])
    return replace(rows, terminated=tripped, kept=lengths)


def with_column(rows: Rows, column: Array) -> Rows:
    return replace(rows, obs=np.concatenate([rows.obs, column[..., None]], axis=2))


def step_in_episode(rows: Rows) -> Array:
    return np.broadcast_to(np.arange(rows.rewards.shape[1], dtype=float), rows.rewards.shape)


def rounded(rows: Rows) -> Rows:
    return replace(rows, obs=np.round(rows.obs, 1), actions=np.round(rows.actions))


def one_long(rows: Rows) -> Rows:
    """All episodes as a single one, which is what a continuous log looks like (its joints are jumps)."""
    joined = [values.reshape(1, -1, *values.shape[2:]) for values in (rows.obs, rows.actions, rows.rewards)]
    return Rows(*joined)


def rewards_of_state(state: Array, action: Array, after: Array) -> Array:
    answer: Array = -np.abs(state[:, 0])
    return answer


CLEAN: dict[str, Callable[[], Rows]] = {
    **{f"tank {seed}": (lambda seed=seed: tank_rows(seed)) for seed in range(3)},
    "tank, short log": lambda: tank_rows(5, runs=16),
    "tank with a dead time of 3": lambda: tank_rows(1, delay=3),
    "tank with a dead time of 1": lambda: tank_rows(2, delay=1),
    "tank, outflow not logged": lambda: tank_rows(3, hide=(2,)),
    "tank, dead time and outflow not logged": lambda: tank_rows(4, delay=3, hide=(2,)),
    "tank, rounded": lambda: rounded(tank_rows(6)),
    "tank, minute of the run observed": lambda: with_column(rows := tank_rows(7), step_in_episode(rows)),
    "by chance": lambda: linear_rows(by_chance),
    "by chance, dead time of 1": lambda: linear_rows(by_chance, delay=1),
    "by a rule": lambda: linear_rows(by_rule, 1),
    "by a rule without noise": lambda: linear_rows(lambda s, d: by_rule(s, d, 0.0), 2),
    "by a rule, dead time of 2": lambda: linear_rows(by_rule, 3, delay=2),
    "switched": lambda: linear_rows(switched, 4),
    "slow hand": lambda: linear_rows(Slow(), 5),
    "slow hand, dead time of 1": lambda: linear_rows(Slow(), 6, delay=1),
    "reward of what follows": lambda: linear_rows(by_rule, 7, reward=movement_counts),
    "reward of the state": lambda: linear_rows(by_rule, 8, reward=rewards_of_state),
    "a load of its own in each episode": lambda: linear_rows(by_rule, 9, load=steady_load),
    "cut by chance": lambda: cut_by_chance(linear_rows(by_rule, 10)),
    "trips that are marked": lambda: ended_by_trips(linear_rows(by_chance, 11, noise=0.2)),
    "readings at their bounds": lambda: linear_rows(by_chance, 12, noise=0.3, clip=0.8),
    "one long episode": lambda: one_long(linear_rows(by_rule, 13)),
}
"""Logs in which nothing is wrong."""


def shifted(values: Array, by: int) -> Array:
    """Values so many rows further down; the first of an episode stands for what is not known."""
    moved = np.roll(values, by, axis=1)
    if by > 0:
        moved[:, :by] = values[:, :1]
    else:
        moved[:, by:] = values[:, -1:]
    return moved


def half(rows: Rows, factor: float) -> Rows:
    actions = rows.actions.copy()
    actions[: len(actions) // 2, :, 0] *= factor
    return replace(rows, actions=actions)


def broken(rows: Rows, change: Callable[[Array], None]) -> Rows:
    obs = rows.obs.copy()
    change(obs)
    return replace(rows, obs=obs)


def stuck(obs: Array) -> None:
    obs[3, 10:55, 0] = obs[3, 10, 0]


def coded(obs: Array) -> None:
    obs[2, 5, 1] = obs[4, 7:9, 1] = -9999.0


def counter(rows: Rows, start: float = 0.0, step: float = 1.0) -> Array:
    return start + step * np.arange(rows.rewards.size, dtype=float).reshape(rows.rewards.shape)


def unmarked(rows: Rows) -> Rows:
    return replace(ended_by_trips(rows), terminated=None)


def two_plants(make: Callable[[float, int], Rows]) -> Rows:
    one, other = make(1.0, 20), make(0.3, 21)
    parts = [(one.obs, other.obs), (one.actions, other.actions), (one.rewards, other.rewards)]
    mixed = np.random.default_rng(0).permutation(2 * len(one.rewards))
    return Rows(*(np.concatenate(pair)[mixed] for pair in parts))


RIGHT: dict[str, Callable[[], Rows]] = {
    "tank": tank_rows,
    "by chance": lambda: linear_rows(by_chance),
    "by a rule": lambda: linear_rows(by_rule, 1),
}

WRONG: dict[str, tuple[str, Callable[[Rows], Rows]]] = {
    "rewards one row late": ("Rewards are one row late", lambda r: replace(r, rewards=shifted(r.rewards, 1))),
    "rewards one row early": (
        "Rewards are one row early",
        lambda r: replace(r, rewards=shifted(r.rewards, -1)),
    ),
    "actions one row late": ("Actions are one row late", lambda r: replace(r, actions=shifted(r.actions, 1))),
    "actions with another sign": ("does the opposite", lambda r: half(r, -1.0)),
    "actions in other units": ("other units", lambda r: half(r, 100.0)),
    "a stuck sensor": ("stuck", lambda r: broken(r, stuck)),
    "a code for no value": ("code for no value", lambda r: broken(r, coded)),
    "a leaked reward": ("is the reward of the same row", lambda r: with_column(r, r.rewards)),
    "a leaked action": (
        "of the same row: a policy cannot",
        lambda r: with_column(r, r.actions[..., 0] / 100),
    ),
    "identical columns": ("hold the same numbers", lambda r: with_column(r, r.obs[..., 1])),
    "a row counter": ("counts rows", lambda r: with_column(r, counter(r))),
    "epoch seconds": ("is a clock", lambda r: with_column(r, counter(r, 1.77e9, 30.0))),
}
"""What is said about a mistake, and how it is made in a log that is right."""
