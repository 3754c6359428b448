"""Small plants whose truth can be simulated, the logs their operators leave, policies of known worth.

Used by `truth.py` (`--plants tank …`) and `hidden.py`. Everything is vectorised over runs: a plant is a
start, a step and what can be read of a state. Operators take turns by episode; each follows the readings with
gains of its own and an unsteady hand. Policies are operators without their unrest, others that nobody would
hire, and small trainings of the library on the log.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import rl_training
from rl_training.core.files import write_text_atomic
from rl_training.core.spaces import Spaces
from rl_training.data import DataInfo, TransitionDataset
from rl_training.demo import plant as demo

Array = npt.NDArray[np.float64]
Draws = np.random.Generator
Control = Callable[[Array], Array]
"""Readings `[n, O]` -> actions `[n, A]`."""

LONG_ENOUGH = 600
RUNS = 400


@dataclass(frozen=True)
class Plant:
    """A state evolves under actions; `read` is what an observation holds of it."""

    name: str
    start: Callable[[int, Draws], Array]
    step: Callable[[Array, Array, Draws], tuple[Array, Array, npt.NDArray[np.bool_]]]
    """(states, actions, draws) -> states after, rewards, whether the run is over by itself"""
    low: tuple[float, ...]
    high: tuple[float, ...]
    operators: Mapping[str, tuple[Control, float]]
    """Each with the standard deviation of the hand, as a share of the range"""
    others: Mapping[str, Control]
    """Controllers that no log shows, some good, some bad"""
    length: int = 60
    episodes: int = 120
    read: Callable[[Array], Array] = lambda state: state
    hand_sees: Callable[[Array], Array] | None = None
    """What operators look at, where that is more than the log holds"""
    columns: tuple[str, ...] = ()
    """What readings and actions are called in a CSV; x1 … and a1 … where nothing is said"""
    actions: tuple[str, ...] = ()
    history: int = 0
    """How much of the past a policy should be given, where readings do not say all"""
    runs: int = RUNS
    steps: int = LONG_ENOUGH
    """Of a true value"""

    @property
    def spaces(self) -> Spaces:
        return Spaces(self.read(self.start(1, np.random.default_rng(0))).shape[1], self.low, self.high)

    def clipped(self, actions: npt.ArrayLike) -> Array:
        found: Array = np.clip(np.asarray(actions, np.float64), self.low, self.high)
        return found

    def by_hand(self, name: str, seen: Array, draws: Draws) -> Array:
        control, unrest = self.operators[name]
        meant = control(seen)
        spread = unrest * (np.array(self.high) - np.array(self.low))
        return self.clipped(meant + spread * draws.normal(size=meant.shape))

    def log(self, seed: int, *, mark_ends: bool = True) -> tuple[TransitionDataset, npt.NDArray[np.int64]]:
        """Rows as logged, and who acted in each of them."""
        draws, names = np.random.default_rng([seed, 1]), list(self.operators)
        state = self.start(self.episodes, draws)
        who = np.arange(self.episodes) % len(names)
        alive = np.ones(self.episodes, bool)
        table: list[tuple[Any, ...]] = []
        for step in range(self.length):
            seen = (self.hand_sees or self.read)(state)
            actions = np.zeros((self.episodes, len(self.low)))
            for index, name in enumerate(names):
                actions[who == index] = self.by_hand(name, seen[who == index], draws)
            after, rewards, over = self.step(state, actions, draws)
            last = over | (step == self.length - 1)
            table.append((self.read(state), actions, rewards, self.read(after), over, last, alive.copy()))
            state, alive = after, alive & ~over
        obs, actions, rewards, after, over, last, kept = (
            np.swapaxes(np.stack(column), 0, 1) for column in zip(*table, strict=True)
        )
        flat = [each[kept] for each in (obs, actions, rewards, after, over, last)]
        terminated = flat[4] if mark_ends else np.zeros_like(flat[4])
        data = TransitionDataset(
            *(each.astype(np.float32) for each in flat[:4]),
            terminated.astype(np.float32),
            truncations=(flat[5] & ~terminated).astype(np.float32),
            info=DataInfo(spaces=self.spaces, source=self.name),
        )
        return data, np.broadcast_to(who[:, None], kept.shape)[kept]

    def true_value(self, control: Control, gamma: float, seed: int, *, hand: str | None = None) -> float:
        """Mean discounted return of new runs, each long enough for the discount to end it."""
        draws = np.random.default_rng([seed, 2])

        def acts(state: Array) -> Array:
            if hand is None:
                return self.clipped(control(self.read(state)))
            return self.by_hand(hand, (self.hand_sees or self.read)(state), draws)

        return self._worth(acts, gamma, draws)

    def worth(self, policy: Any, gamma: float, seed: int, *, guard: bool = False, **inputs: float) -> float:
        """The same of a policy that is stepped through time with whatever it remembers."""
        controller = policy.controller(self.runs, guard=guard)

        def acts(state: Array) -> Array:
            return self.clipped(controller.act(self.read(state).astype(np.float32), **inputs).action)

        return self._worth(acts, gamma, np.random.default_rng([seed, 2]))

    def _worth(self, acts: Callable[[Array], Array], gamma: float, draws: Draws) -> float:
        state, alive, weight = self.start(self.runs, draws), np.ones(self.runs), 1.0
        total = np.zeros(self.runs)
        for _ in range(self.steps):
            state, rewards, over = self.step(state, acts(state), draws)
            total += weight * alive * rewards
            alive, weight = alive * ~over, weight * gamma
            if not alive.any():
                break
        return float(total.mean())


@dataclass(frozen=True)
class Controller:
    """A function of readings as a policy."""

    plant: Plant
    control: Control
    spaces: Spaces

    def predict(self, obs: npt.ArrayLike) -> npt.NDArray[np.float32]:
        return self.plant.clipped(self.control(np.asarray(obs, np.float64))).astype(np.float32)


# ---- the plants


def never(state: Array) -> npt.NDArray[np.bool_]:
    return np.zeros(len(state), bool)


def tank() -> Plant:
    """The demo's hot-water tank with its four operators."""

    def step(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        after, score = demo.step(state, actions, draws)
        return after, score, never(state)

    def made(heat: float, fill: float, foresight: float) -> Control:
        return demo.Operator("", heat, fill, foresight, 0.0).meant

    return Plant(
        "tank",
        demo.start,
        step,
        (0.0, 0.0),
        (100.0, 100.0),
        {each.name: (each.meant, each.unrest / 100.0) for each in demo.OPERATORS},
        {
            "careful": made(3.0, 1.0, 0.8),
            "keen": made(8.0, 3.0, 1.0),
            "wild": made(40.0, 20.0, 1.0),
            "backwards": made(-1.0, 0.5, 0.0),
            "idle": lambda seen: np.full((len(seen), 2), 30.0),
            "full": lambda seen: np.full((len(seen), 2), 100.0),
        },
    )


def cascade() -> Plant:
    """Two tanks one above the other, drained by their weight; a pump fills the upper one, a valve leaks it.

    Wanted is a level of the lower one that changes from run to run.
    """

    def start(runs: int, draws: Draws) -> Array:
        return draws.uniform((0.5, 0.5, 1.0), (3.0, 3.0, 3.0), (runs, 3))

    def step(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        upper, lower, wanted = state.T
        pump, leak = actions.T
        down = 0.5 * np.sqrt(upper)
        shaken = draws.normal(0.0, 0.03, (len(state), 2))
        after = np.stack(
            [
                np.clip(upper + 0.3 * pump - 0.3 * leak * upper - 0.3 * down + shaken[:, 0], 0.0, 5.0),
                np.clip(lower + 0.3 * down - 0.15 * np.sqrt(lower) + shaken[:, 1], 0.0, 5.0),
                wanted,
            ],
            axis=1,
        )
        cost = (after[:, 1] - wanted) ** 2 + 0.05 * pump**2 + 0.2 * leak
        return after, -cost, never(state)

    def made(gain: float, base: float, leak: float = 0.0) -> Control:
        def control(seen: Array) -> Array:
            upper, lower, wanted = seen.T
            pump = base + gain * (wanted - lower) - 0.3 * gain * np.maximum(upper - wanted, 0.0)
            return np.stack([pump, leak * (lower > wanted + 0.3)], axis=1)

        return control

    return Plant(
        "cascade",
        start,
        step,
        (0.0, 0.0),
        (2.0, 1.0),
        {
            "north": (made(0.3, 0.4), 0.1),
            "south": (made(0.8, 0.3, 0.3), 0.12),
            "night": (made(0.1, 0.5), 0.15),
        },
        {
            "tuned": made(1.0, 0.35, 0.5),
            "eager": made(3.0, 0.35, 1.0),
            "bang": made(50.0, 0.35, 1.0),
            "leaky": made(0.3, 0.4, 5.0),
            "closed": lambda seen: np.zeros((len(seen), 2)),
            "open": lambda seen: np.tile([2.0, 0.0], (len(seen), 1)),
            "backwards": made(-0.5, 0.5),
        },
        length=100,
    )


def reactor() -> Plant:
    """A reaction that heats itself: more feed earns more and runs away; above a temperature it trips."""

    def start(runs: int, draws: Draws) -> Array:
        return draws.uniform((0.8, 0.3), (1.4, 0.7), (runs, 2))

    def step(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        heat, stuff = state.T
        feed, cooling = actions.T
        rate = 0.25 * stuff * np.exp(1.2 * (heat - 1.0))
        shaken = draws.normal(0.0, 0.03, (len(state), 2))
        after = np.stack(
            [
                np.clip(heat + rate - 0.3 * cooling * heat - 0.04 * (heat - 0.5) + shaken[:, 0], 0.2, 4.0),
                np.clip(stuff + 0.3 * feed - rate + 0.3 * shaken[:, 1], 0.0, 2.0),
            ],
            axis=1,
        )
        trips = after[:, 0] > 2.2
        return after, rate - 0.03 * cooling - 2.0 * trips, trips

    def made(wanted: float, gain: float, feed: float) -> Control:
        def control(seen: Array) -> Array:
            heat, _ = seen.T
            return np.stack(
                [feed - 0.3 * np.maximum(heat - wanted, 0.0), 0.4 + gain * (heat - wanted)], axis=1
            )

        return control

    return Plant(
        "reactor",
        start,
        step,
        (0.0, 0.0),
        (1.0, 1.0),
        {
            "old": (made(1.2, 0.5, 0.35), 0.08),
            "young": (made(2.0, 0.3, 0.9), 0.2),
            "shy": (made(0.9, 0.6, 0.25), 0.08),
        },
        {
            "brisk": made(1.5, 0.8, 0.6),
            "edge": made(1.8, 1.0, 0.7),
            "greedy": made(2.1, 0.3, 1.0),
            "hot": lambda seen: np.tile([1.0, 0.0], (len(seen), 1)),
            "cold": lambda seen: np.tile([0.1, 1.0], (len(seen), 1)),
            "backwards": made(1.2, -0.5, 0.4),
        },
        length=80,
    )


def arm() -> Plant:
    """A hand in the plane that is pushed towards a point: short episodes, as of a robot's reaching task."""

    def start(runs: int, draws: Draws) -> Array:
        state = draws.uniform(-1.0, 1.0, (runs, 6))
        state[:, 2:4] *= 0.1
        return state

    def step(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        place, speed, target = state[:, :2], state[:, 2:4], state[:, 4:]
        speed = 0.85 * speed + 0.1 * actions + draws.normal(0.0, 0.005, speed.shape)
        place = np.clip(place + 0.5 * speed, -2.0, 2.0)
        reward = -np.linalg.norm(place - target, axis=1) - 0.05 * np.square(actions).sum(1)
        return np.concatenate([place, speed, target], axis=1), reward, never(state)

    def made(gain: float, brake: float) -> Control:
        return lambda seen: gain * (seen[:, 4:] - seen[:, :2]) - brake * seen[:, 2:4]

    return Plant(
        "arm",
        start,
        step,
        (-1.0, -1.0),
        (1.0, 1.0),
        {"slow": (made(0.5, 0.5), 0.15), "quick": (made(2.0, 1.0), 0.15), "loose": (made(0.2, 0.0), 0.25)},
        {
            "tuned": made(2.5, 3.0),
            "stiff": made(10.0, 8.0),
            "soft": made(0.3, 1.0),
            "nothing": lambda seen: np.zeros((len(seen), 2)),
            "away": made(-0.5, 0.0),
            "aside": lambda seen: np.stack([seen[:, 5] - seen[:, 1], -(seen[:, 4] - seen[:, 0])], axis=1),
        },
        length=50,
        episodes=160,
    )


def cart_pole() -> Plant:
    """A pole on a cart, kept upright by linear controllers; it ends when the pole falls or the track does.

    Every step that it stands earns 1, less what the cart is away from the middle.
    """
    gravity, pole, mass, time = 9.8, 0.5, 0.1, 0.04

    def start(runs: int, draws: Draws) -> Array:
        return draws.uniform((-1.0, -0.2, -0.1, -0.2), (1.0, 0.2, 0.1, 0.2), (runs, 4))

    def step(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        _, speed, angle, turn = state.T
        force = actions[:, 0] + draws.normal(0.0, 0.3, len(state))
        sine, cosine = np.sin(angle), np.cos(angle)
        pushed = (force + mass * pole * turn**2 * sine) / (1.0 + mass)
        falling = (gravity * sine - cosine * pushed) / (pole * (4.0 / 3.0 - mass * cosine**2 / (1.0 + mass)))
        moving = pushed - mass * pole * falling * cosine / (1.0 + mass)
        change = np.stack([speed, moving, turn, falling], axis=1)
        after = state + time * change
        over = (np.abs(after[:, 2]) > 0.5) | (np.abs(after[:, 0]) > 2.4)
        return after, 1.0 - 0.3 * np.minimum(after[:, 0] ** 2, 6.0), over

    def made(place: float, speed: float, angle: float, turn: float) -> Control:
        return lambda seen: seen @ np.array([[place], [speed], [angle], [turn]])

    return Plant(
        "cart-pole",
        start,
        step,
        (-10.0,),
        (10.0,),
        {
            "steady": (made(0.2, 0.8, 22.0, 4.0), 0.1),
            "stiff": (made(0.0, 0.3, 40.0, 3.0), 0.15),
            "late": (made(0.3, 0.6, 18.0, 2.0), 0.2),
        },
        {
            "tuned": made(1.0, 2.0, 30.0, 6.0),
            "soft": made(0.0, 0.0, 14.0, 1.0),
            "nothing": lambda seen: np.zeros((len(seen), 1)),
        },
        length=100,
    )


PLANTS = {made().name: made for made in (tank, cascade, reactor, arm)}


def controllers(plant: Plant) -> dict[str, Controller]:
    """Operators without their unrest, and the others."""
    every = {name: control for name, (control, _) in plant.operators.items()} | dict(plant.others)
    return {name: Controller(plant, control, plant.spaces) for name, control in every.items()}


def two_in_one(plant: Plant, answer: float = 0.3) -> Plant:
    """Half of the runs are from a plant that answers less to its actions; nothing logged says which."""
    middle = (np.array(plant.low) + np.array(plant.high)) / 2.0

    def start(runs: int, draws: Draws) -> Array:
        return np.column_stack([plant.start(runs, draws), draws.integers(0, 2, runs)])

    def step(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        which = state[:, -1:]
        applied = np.where(which > 0, actions, middle + answer * (actions - middle))
        after, rewards, over = plant.step(state[:, :-1], applied, draws)
        return np.column_stack([after, which]), rewards, over

    return replace(plant, start=start, step=step, read=lambda state: plant.read(state[:, :-1]))


def delayed(plant: Plant, rows: int = 3) -> Plant:
    """What is done shows so many rows later; the past actions are not logged as observations."""
    width = len(plant.low)
    middle = (np.array(plant.low) + np.array(plant.high)) / 2.0

    def start(runs: int, draws: Draws) -> Array:
        return np.column_stack([plant.start(runs, draws), np.tile(middle, (runs, rows))])

    def step(state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, npt.NDArray[np.bool_]]:
        inner, pending = state[:, : -rows * width], state[:, -rows * width :]
        after, rewards, over = plant.step(inner, pending[:, :width], draws)
        return np.column_stack([after, pending[:, width:], actions]), rewards, over

    return replace(plant, start=start, step=step, read=lambda state: plant.read(state[:, : -rows * width]))


# ---- the log, as a user has it


def write_log(plant: Plant, path: Path, seed: int) -> dict[str, Any]:
    """A CSV of everything that was logged; returns how its columns are named."""
    data, who = plant.log(seed)
    names = list(plant.operators)
    obs = list(plant.columns) or [f"x{index + 1}" for index in range(data.obs.shape[1])]
    actions = list(plant.actions) or [f"a{index + 1}" for index in range(data.actions.shape[1])]
    ends = data.episode_ends("a log")
    episode = np.cumsum(ends) - ends
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(["run", "who", *obs, *actions, "reward", "tripped"])
    numbers = np.column_stack([data.obs.numpy(), data.actions.numpy(), data.rewards.numpy()])
    for row, values in enumerate(np.round(numbers, 5)):
        table.writerow([int(episode[row]), names[who[row]], *values, int(data.dones[row])])
    write_text_atomic(path, text.getvalue())
    columns = {"observations": obs, "actions": actions, "reward": "reward", "episode": "run"}
    return {**columns, "terminated": "tripped", "operator": "who"}


# ---- policies that are learned from a log

TRAININGS: Mapping[str, tuple[str, int, Mapping[str, float]]] = {
    "iql": ("IQL", 1500, {}),
    "iql-young": ("IQL", 200, {}),
    "td3_bc": ("TD3BC", 1500, {}),
    "bold": ("TD3BC", 1500, {"alpha": 20.0}),
    "bc": ("BC", 800, {}),
}
"""Class, updates and settings; `bold` hardly keeps to the data."""


def trained(
    data: TransitionDataset,
    folder: Path,
    seed: int,
    share: float = 1.0,
    names: Sequence[str] = tuple(TRAININGS),
) -> dict[str, Any]:
    """Small policies trained on the log, or found where they were kept."""
    found = {}
    for name in names:
        algo, updates, settings = TRAININGS[name]
        file = folder / f"{name}-s{seed}.safetensors"
        if not file.is_file():
            learner = getattr(rl_training, algo)(
                seed=seed,
                total_timesteps=max(1, round(share * updates)),
                output_dir=str(folder / "runs"),
                eval_episodes=0,
                judge_at_end=False,
                compile=False,
                hidden_sizes=[64, 64],
                learning_rate=1e-3,
                normalize_observations=True,
                **settings,
            )
            learner.learn(dataset=data, quiet=True)
            folder.mkdir(parents=True, exist_ok=True)
            learner.save(file)
        found[name] = rl_training.load_policy(file)
    return found


def policies_and_truth(
    plant: Plant, data: TransitionDataset, folder: Path, seed: int, *, gamma: float, share: float = 1.0
) -> tuple[dict[str, Any], dict[str, dict[str, float]]]:
    """Every policy of a plant by name, and what each truly earns."""
    policies: dict[str, Any] = {**controllers(plant), **trained(data, folder, seed, share)}
    truth = {
        name: {"value": plant.true_value(policy.predict, gamma, seed=9000 + seed)}
        for name, policy in policies.items()
    }
    return policies, truth
