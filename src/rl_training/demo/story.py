"""What the demo does, step by step, and the commands with which a user does the same."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rl_training.config.run import TrainConfig
from rl_training.core.checkpoints import checkpoint_path
from rl_training.demo.page import write_demo_page
from rl_training.demo.plant import Truth, ask_the_plant, write_log
from rl_training.judging.fit import OnProgress
from rl_training.judging.verdict import Judgement
from rl_training.policies.loading import load_policy
from rl_training.runs import saved
from rl_training.runs.start import config_from_options
from rl_training.runs.train import train
from rl_training.runtime.callbacks import TrainResult

RUNS, STEPS, SAVED_EVERY, GAMMA = 200, 1500, 100, 0.95
OBSERVATIONS, ACTIONS = ["T_tank", "level", "outflow"], ["heater", "valve"]
COLUMNS = {"observations": OBSERVATIONS, "actions": ACTIONS, "reward": "score", "episode": "run"}
COLUMN_OPTIONS = (
    *("--obs", ",".join(OBSERVATIONS), "--action", ",".join(ACTIONS)),
    *("--reward", "score", "--episode", "run"),
)
CHANGES = {
    "checkpoint_interval": SAVED_EVERY,
    "algo_kwargs.keep_checkpoints": STEPS // SAVED_EVERY,
    "algo_kwargs.gamma": GAMMA,
    "algo_kwargs.judge_at_end": False,  # the judge has the next step to itself
}


@dataclass(frozen=True)
class Demo:
    """A log, a policy that is learned from it, what a judge says of it from the log alone, and the truth."""

    folder: Path
    seed: int = 0

    @property
    def log(self) -> Path:
        return self.folder / "log.csv"

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
    def train_command(self) -> list[str]:
        bounds = ("--action-low", "0", "--action-high", "100")
        size = ("--steps", str(STEPS), "--seed", str(self.seed), "--output-dir", str(self.folder))
        changes = [part for change in _overrides(CHANGES) for part in ("--set", change)]
        data = ("--algo", "iql", "--data", str(self.log), *COLUMN_OPTIONS, *bounds)
        return ["train", *data, *size, *changes]

    @property
    def config(self) -> TrainConfig:
        """What that command trains."""
        options = {"seed": self.seed, "output_dir": str(self.folder), "algo": "iql", "total_timesteps": STEPS}
        fields = {"columns": COLUMNS, "action_low": [0.0], "action_high": [100.0]}
        return config_from_options(
            None, options, data=str(self.log), fields=fields, changes=_overrides(CHANGES)
        )

    def train(self, *, quiet: bool) -> TrainResult:
        return train(self.config, quiet=quiet)

    def judge_command(self, run_dir: Path) -> list[str]:
        options = ("--data", str(self.log), *COLUMN_OPTIONS, "--gamma", str(GAMMA), "--seed", str(self.seed))
        return ["judge", str(run_dir), *options]

    def judge(self, run_dir: Path, on_progress: OnProgress) -> Judgement:
        return saved.judge(
            [run_dir], str(self.log), columns=COLUMNS, on_progress=on_progress, gamma=GAMMA, seed=self.seed
        )

    def truth(self, run_dir: Path) -> Truth:
        """What the plant says of everybody, and of the policy at every checkpoint."""
        steps = range(SAVED_EVERY, STEPS + 1, SAVED_EVERY)
        policies = [(each, load_policy(checkpoint_path(run_dir, each)).predict) for each in steps]
        return ask_the_plant(policies, gamma=GAMMA, seed=self.seed)

    def write_page(self, judgement: Judgement, truth: Truth) -> None:
        write_demo_page(judgement, truth, self.page)


def _overrides(values: Mapping[str, object]) -> list[str]:
    return [f"{name}={json.dumps(value)}" for name, value in values.items()]
