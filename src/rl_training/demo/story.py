"""What the demo does, step by step, and the commands with which a user does the same."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rl_training.demo.page import write_demo_page
from rl_training.demo.plant import Truth, ask_the_plant, write_log
from rl_training.judging.fit import OnProgress
from rl_training.recommend.auto import AutoResult, Say, auto

RUNS, MINUTES, GAMMA = 200, 1.0, 0.95
OBSERVATIONS, ACTIONS = ["T_tank", "level", "outflow"], ["heater", "valve"]
COLUMNS = {
    **{"observations": OBSERVATIONS, "actions": ACTIONS, "reward": "score", "episode": "run"},
    **{"time": "time", "operator": "operator"},
}
COLUMN_OPTIONS = (
    *("--obs", ",".join(OBSERVATIONS), "--action", ",".join(ACTIONS), "--reward", "score"),
    *("--episode", "run", "--time", "time", "--operator", "operator"),
)
BOUNDS = {"action_low": [0.0], "action_high": [100.0]}


@dataclass(frozen=True)
class Demo:
    """A log, a policy recommended by it alone, with intervals and a dial, and then the truth."""

    folder: Path
    seed: int = 0

    @property
    def log(self) -> Path:
        return self.folder / "log.csv"

    @property
    def out(self) -> Path:
        return self.folder / "auto"

    @property
    def page(self) -> Path:
        return self.folder / "demo.html"

    def write_log(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        write_log(self.log, runs=RUNS, seed=self.seed)

    @property
    def inspect_command(self) -> list[str]:
        return ["data", "inspect", str(self.log)]

    @property
    def auto_command(self) -> list[str]:
        bounds = ("--action-low", "0", "--action-high", "100", "--gamma", str(GAMMA))
        size = ("--minutes", f"{MINUTES:g}", "--seed", str(self.seed), "--out", str(self.out))
        return ["auto", str(self.log), *COLUMN_OPTIONS, *bounds, *size]

    def recommend(self, say: Say, on_progress: OnProgress) -> AutoResult:
        """What that command finds."""
        return auto(
            str(self.log),
            columns=COLUMNS,
            fields=BOUNDS,
            out=self.out,
            say=say,
            on_progress=on_progress,
            gamma=GAMMA,
            minutes=MINUTES,
            seed=self.seed,
        )

    def truth(self, found: AutoResult) -> Truth:
        """What the plant says of every operator and of every candidate."""
        candidates = {name: policy.predict for name, policy in found.policies.items()}
        return ask_the_plant(candidates, gamma=GAMMA, seed=self.seed)

    def write_page(self, found: AutoResult, truth: Truth) -> None:
        write_demo_page(found, truth, self.page)
