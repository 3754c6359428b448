"""Public simulators behind one pipe; `public_plants.py` starts this in an environment of its own.

A line of JSON asks, a line answers. {"do": "start", "runs": 3, "seed": 5} makes states; {"do": "step",
"state": …, "actions": …, "seed": 6} gives the states after, rewards and which runs are over by themselves. A
state is a row of numbers: first what is read of it, then what is hidden.
"""

from __future__ import annotations

import json
import sys
import warnings

import numpy as np


class FourTanks:
    """pcgym's four tanks: pumps fill the lower tanks partly through the upper ones of the other side.

    Levels of the four and the levels wanted of the lower two, which change from run to run.
    """

    SECONDS, PARTS = 1000.0 / 60.0, 10

    def __init__(self) -> None:
        from pcgym.model_classes import four_tank

        self.flow = four_tank(int_method="casadi")

    def start(self, runs: int, draws: np.random.Generator) -> np.ndarray:
        levels = draws.uniform(0.05, 0.3, (runs, 4))
        return np.concatenate([levels, draws.uniform(0.08, 0.3, (runs, 2))], axis=1)

    def change(self, levels: np.ndarray, volts: np.ndarray) -> np.ndarray:
        return np.array(self.flow(np.maximum(levels, 1e-6), volts))

    def step(self, state: np.ndarray, actions: np.ndarray, draws: np.random.Generator) -> tuple:
        levels, wanted, volts = state[:, :4].T, state[:, 4:], actions.T
        size = self.SECONDS / self.PARTS
        for _ in range(self.PARTS):  # Runge and Kutta's fourth order
            first = self.change(levels, volts)
            second = self.change(levels + size / 2.0 * first, volts)
            third = self.change(levels + size / 2.0 * second, volts)
            fourth = self.change(levels + size * third, volts)
            levels = levels + size / 6.0 * (first + 2.0 * second + 2.0 * third + fourth)
        levels = np.maximum(levels.T + draws.normal(0.0, 0.002, levels.T.shape), 1e-3)
        reward = -100.0 * np.square(levels[:, :2] - wanted).sum(1)
        return np.concatenate([levels, wanted], axis=1), reward, np.zeros(len(state), bool)


class IndustrialBenchmark:
    """Siemens' Industrial Benchmark at the set point 70; its own reward / 100, as in its offline sets.

    Velocity, gain, shift, fatigue and consumption are read; what wears out and what costs later is hidden.
    """

    READ = ("v", "g", "h", "f", "c")

    def __init__(self) -> None:
        np.float = float  # the package is older than numpy's removal of the name
        from industrial_benchmark_python.IDS import IDS

        self.plant = IDS(70)
        hidden = [name for name in self.plant.state if name not in (*self.READ, "o")]
        self.scalars = (*self.READ, *hidden)

    def row(self) -> np.ndarray:
        held = self.plant.state
        return np.concatenate([[held[name] for name in self.scalars], held["o"]]).astype(np.float64)

    def start(self, runs: int, draws: np.random.Generator) -> np.ndarray:
        seeds = draws.integers(2**31, size=runs)
        return np.stack([self.fresh(int(seed)) for seed in seeds])

    def fresh(self, seed: int) -> np.ndarray:
        self.plant.__init__(70, inital_seed=seed)
        return self.row()

    def step(self, state: np.ndarray, actions: np.ndarray, draws: np.random.Generator) -> tuple:
        np.random.seed(int(draws.integers(2**31)))
        after = np.empty_like(state)
        count = len(self.scalars)
        for index, (row, action) in enumerate(zip(state, actions, strict=True)):
            held = self.plant.state
            for name, value in zip(self.scalars, row[:count].tolist(), strict=True):
                held[name] = int(value) if name.startswith("gs_") else value
            held["o"] = row[count:].copy()
            self.plant.step(action)
            after[index] = self.row()
        return after, after[:, self.scalars.index("reward")] / 100.0, np.zeros(len(state), bool)


class Motor:
    """The current of gym-electric-motor's permanently excited DC motor; too large a current ends a run.

    Current, voltage and the current wanted next, as shares of their limits. Behind them stands the number of
    a simulator that goes on from there: states of other batches are gone.
    """

    def __init__(self) -> None:
        import gym_electric_motor as gem

        solver = gem.physical_systems.EulerSolver
        self.make = lambda: gem.make("Cont-CC-PermExDc-v0", ode_solver=solver()).unwrapped
        self.runs: list = []

    @staticmethod
    def readings(state: np.ndarray, wanted: np.ndarray, index: int) -> list[float]:
        return [float(state[2]), float(state[3]), float(wanted[0]), index]

    def start(self, runs: int, draws: np.random.Generator) -> np.ndarray:
        while len(self.runs) < runs:
            self.runs.append(self.make())
        seeds = draws.integers(2**31, size=runs)
        begun = [each.reset(seed=int(seed))[0] for each, seed in zip(self.runs, seeds)]  # noqa: B905 (more may be there)
        return np.array([self.readings(*each, index) for index, each in enumerate(begun)])

    def step(self, state: np.ndarray, actions: np.ndarray, draws: np.random.Generator) -> tuple:
        found = [self.one(row, action) for row, action in zip(state, actions, strict=True)]
        after, rewards, over = zip(*found, strict=True)
        return np.array(after), np.array(rewards), np.array(over)

    def one(self, row: np.ndarray, action: np.ndarray) -> tuple:
        if row[-1] < 0:  # over already
            return row, 0.0, True
        (state, wanted), reward, over, _, _ = self.runs[int(row[-1])].step(action)
        return self.readings(state, wanted, -1 if over else int(row[-1])), float(reward), bool(over)


SIMULATORS = {"four-tanks": FourTanks, "industrial": IndustrialBenchmark, "motor": Motor}


def main() -> None:
    warnings.simplefilter("ignore")
    out, sys.stdout = sys.stdout, sys.stderr  # packages that print must not answer
    simulator = SIMULATORS[sys.argv[1]]()
    for line in sys.stdin:
        asked = json.loads(line)
        draws = np.random.default_rng(asked["seed"])
        if asked["do"] == "start":
            told = {"state": simulator.start(asked["runs"], draws).tolist()}
        else:
            state, actions = np.array(asked["state"]), np.array(asked["actions"])
            after, rewards, over = simulator.step(state, actions, draws)
            told = {"state": after.tolist(), "rewards": rewards.tolist(), "over": over.tolist()}
        print(json.dumps(told), file=out, flush=True)


if __name__ == "__main__":
    main()
