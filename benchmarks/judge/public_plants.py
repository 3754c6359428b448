"""Public simulators as plants: pcgym's four tanks, Siemens' Industrial Benchmark, a motor's current.

    python benchmarks/judge/public_plants.py --environment DIR  # install, once
    python benchmarks/judge/public_plants.py --environment DIR --logs DIR  # CSVs, and operators' true values

The simulators are installed into an environment of their own and run there (`simulate.py`); states and
actions go through a pipe, so that policies are asked here and nothing of theirs is needed here.
`public_plants(DIR)` gives what `plants.PLANTS` gives: functions that make a `Plant` with operators, a log and
true values. The operators are ours; what their hands leave unsteady is what there is to learn from.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import venv
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from plants import Array, Control, Draws, Plant, write_log

PACKAGES = ("pcgym==0.1.8", "gym-electric-motor==3.0.3", "industrial-benchmark-python==2.0", "do-mpc==5.1.2")
NEEDED = ("numpy", "scipy", "casadi", "gymnasium", "jax", "diffrax", "matplotlib", "packaging")
"""What the parts need that are used; all that the packages name would be gigabytes."""


def install(environment: Path) -> None:
    """Make the environment; what is there stays."""
    if not (environment / "bin" / "python").exists():
        venv.create(environment, with_pip=True)
    pip = [str(environment / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    subprocess.run([*pip, *NEEDED], check=True)
    subprocess.run([*pip, "--no-deps", *PACKAGES], check=True)


class Simulator:
    """One simulator in its process."""

    def __init__(self, environment: Path, name: str) -> None:
        python = environment / "bin" / "python"
        if not python.exists():
            raise SystemExit(f"{python} is missing: run public_plants.py --environment {environment} first")
        file = Path(__file__).with_name("simulate.py")
        self.process = subprocess.Popen(
            [str(python), "-W", "ignore", str(file), name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def ask(self, draws: Draws, **question: Any) -> dict[str, Any]:
        told, answers = self.process.stdin, self.process.stdout
        assert told is not None and answers is not None
        print(json.dumps({**question, "seed": int(draws.integers(2**31))}), file=told, flush=True)
        if not (line := answers.readline()):
            raise SystemExit(f"the simulator ended: {' '.join(map(str, self.process.args))}")  # type: ignore[arg-type]
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(self, runs: int, draws: Draws) -> Array:
        return np.array(self.ask(draws, do="start", runs=runs)["state"])

    def step(self, state: Array, actions: Array, draws: Draws) -> tuple[Array, Array, Any]:
        told = self.ask(draws, do="step", state=state.tolist(), actions=actions.tolist())
        return np.array(told["state"]), np.array(told["rewards"]), np.array(told["over"], bool)


def first(columns: int, state: Array) -> Array:
    return state[:, :columns]


def public(environment: Path, name: str, columns: tuple[str, ...], **facts: Any) -> Plant:
    simulator = Simulator(environment, name)
    read = partial(first, len(columns))
    return Plant(name, simulator.start, simulator.step, read=read, columns=columns, **facts)


def four_tanks(environment: Path) -> Plant:
    """Levels follow the pump of the other side late and that of their own side at once."""

    def made(gain: float, share: float, cross: float = 1.0) -> Control:
        """Volts that would hold the levels, more or less, and a part for what is missing now."""

        def control(seen: Array) -> Array:
            missing = seen[:, 4:] - seen[:, :2]
            hold = 15.5 * np.sqrt(seen[:, 4:])
            volts = hold * share + gain * missing
            return cross * volts[:, ::-1] + (1.0 - cross) * volts

        return control

    return public(
        environment,
        "four-tanks",
        ("h1", "h2", "h3", "h4", "wanted1", "wanted2"),
        actions=("pump1", "pump2"),
        low=(0.1, 0.1),
        high=(10.0, 10.0),
        operators={
            "steady": (made(5.0, 0.85), 0.1),
            "keen": (made(25.0, 0.7), 0.12),
            "own-side": (made(10.0, 0.8, 0.0), 0.15),
        },
        others={
            "tuned": made(15.0, 1.0),
            "stiff": made(80.0, 1.0),
            "static": made(0.0, 1.0),
            "backwards": made(-10.0, 1.0),
        },
        runs=100,
    )


def industrial(environment: Path) -> Plant:
    """Each operator goes to a point of velocity, gain and shift and stays there, with an unsteady hand."""

    def made(*point: float) -> Control:
        def control(seen: Array) -> Array:
            return np.clip((np.array(point) - seen[:, :3]) / np.array((1.0, 10.0, 5.75)), -1.0, 1.0)

        return control

    return public(
        environment,
        "industrial",
        ("velocity", "gain", "shift", "fatigue", "consumption"),
        actions=("d_velocity", "d_gain", "d_shift"),
        low=(-1.0, -1.0, -1.0),
        high=(1.0, 1.0, 1.0),
        operators={
            "middle": (made(50.0, 50.0, 50.0), 0.3),
            "slow": (made(30.0, 60.0, 40.0), 0.3),
            "late": (made(40.0, 80.0, 70.0), 0.3),
        },
        others={
            "mediocre": made(25.0, 25.0, 25.0),
            "careful": made(35.0, 70.0, 50.0),
            "bad": made(100.0, 0.0, 50.0),
        },
        length=200,
        episodes=60,
        history=10,
        runs=30,
        steps=400,
    )


def motor(environment: Path) -> Plant:
    """The voltage that holds a current, and a part for what is missing."""

    def made(gain: float, hold: float) -> Control:
        return lambda seen: (hold + 0.06 * seen[:, 2] + gain * (seen[:, 2] - seen[:, 0]))[:, None]

    return public(
        environment,
        "motor",
        ("current", "voltage", "wanted"),
        actions=("volts",),
        low=(-1.0,),
        high=(1.0,),
        operators={
            "soft": (made(0.3, 0.26), 0.02),
            "quick": (made(1.0, 0.2), 0.04),
            "rough": (made(0.6, 0.3), 0.08),
        },
        others={
            "tuned": made(3.0, 0.26),
            "stiff": made(10.0, 0.26),
            "nothing": lambda seen: 0.0 * seen[:, :1],
        },
        length=100,
        episodes=150,
        runs=40,
        steps=300,
    )


MADE: Mapping[str, Callable[[Path], Plant]] = {
    "four-tanks": four_tanks,
    "industrial": industrial,
    "motor": motor,
}
NAMES = tuple(MADE)


def public_plants(environment: Path) -> Mapping[str, Callable[[], Plant]]:
    return {name: partial(made, environment) for name, made in MADE.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--environment", type=Path, required=True, help="where the simulators are installed")
    parser.add_argument("--logs", type=Path, help="write CSVs there; nothing is installed then")
    parser.add_argument("--plants", nargs="+", choices=NAMES, default=list(NAMES))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--runs", type=int, help="of a true value; without it as many as the plant has")
    options = parser.parse_args()
    if options.logs is None:
        install(options.environment)
        return
    options.logs.mkdir(parents=True, exist_ok=True)
    print("| plant | who | true value |\n|---|---|---|")
    for name in options.plants:
        plant = public_plants(options.environment)[name]()
        plant = replace(plant, runs=options.runs or plant.runs)
        write_log(plant, options.logs / f"{name}.csv", options.seed)
        for who, (control, _) in plant.operators.items():
            print(f"| {name} | {who} | {plant.true_value(control, 0.99, 1, hand=who):.1f} |", flush=True)
        for who, control in plant.others.items():
            print(f"| {name} | ({who}) | {plant.true_value(control, 0.99, 1):.1f} |", flush=True)


if __name__ == "__main__":
    main()
