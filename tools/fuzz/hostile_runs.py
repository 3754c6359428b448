"""Checkpoints and run directories whose settings reach for files, modules, windows or trackers.

The environment that they name follows every word it is given, as a careless one would.
"""

from __future__ import annotations

import copy
import importlib
import json
import random
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import gymnasium as gym
import opening
from damage import CANARY, ODD_VALUES
from gymnasium.envs.classic_control.pendulum import PendulumEnv
from opening import Check
from samples import Samples, files_below
from watch import Case

from rl_training.core.checkpoints import load_checkpoint, save_checkpoint

FOLLOWS = "FuzzFollows-v0"
OUTSIDE = "../outside/secret.csv"
KEYS = ("model", "xml_file", "reward", "render_mode", "gui", "render", "module", "level", "options")
REACHING = (OUTSIDE, OUTSIDE, OUTSIDE, "human", "human", "window", True, CANARY, f"{CANARY}:Env", "~", ".")
HARMLESS = (0, 1.5, False, None, "sparse", "very hard", [1, 2], {"level": 3})
TRACKERS = (*([],) * 6, ["mlflow"], ["wandb"], ["wandb", "mlflow"], "mlflow", [CANARY], [1])
NO_NUMBERS = ("very good", "", "1", [1], {}, float("nan"), float("inf"), 10**400)
CHECKS = (opening.evaluate, opening.resume, opening.finetune)


class Follows(PendulumEnv):
    """Opens, imports and shows whatever its keywords name."""

    def __init__(self, render_mode: object = None, **keywords: object) -> None:
        for name, value in {**keywords, "render_mode": render_mode}.items():
            self.follow(name, value)
        super().__init__()

    def follow(self, name: str, value: object) -> None:
        if isinstance(value, dict | list):
            inner = value.items() if isinstance(value, dict) else enumerate(value)
            for key, each in inner:
                self.follow(str(key), each)
        elif isinstance(value, str):
            with suppress(OSError, ValueError):
                Path(value).open().close()
            if name == "module":
                with suppress(Exception):
                    importlib.import_module(value)
        if value == "human" or (name in ("render_mode", "gui", "render") and value in (True, "window")):
            Path(OUTSIDE).open().close()  # a window, as far as the watch can tell


gym.register(FOLLOWS, entry_point=Follows, max_episode_steps=3)


class HostileRuns:
    """A run whose checkpoint, or whose metrics, a stranger has written."""

    def __init__(self, samples: Samples) -> None:
        self.samples, self.state = samples, load_checkpoint(samples.checkpoint)
        self.files = {
            name: content
            for name, content in files_below(samples.run).items()
            if name in ("config.yaml", "metrics.jsonl", "summary.json")
        }

    def case(self, number: int, rng: random.Random) -> Case:
        if number % 4 == 3:
            return self.metrics(rng)
        state = copy.deepcopy(self.state)
        state["config"]["env_id"] = FOLLOWS
        state["config"]["env_kwargs"] = odd_keywords(rng)
        state["config"]["trackers"] = rng.choice(TRACKERS)
        content, check = self.packed(state), without_trackers(rng.choice(CHECKS))
        if rng.random() < 0.5:
            return Case({"c.safetensors": content}, check)
        return Case({**self.files, "checkpoints/step_10.safetensors": content}, check)

    def metrics(self, rng: random.Random) -> Case:
        """Rows that hold something else than numbers."""
        files = {**self.files, "checkpoints/step_10.safetensors": self.samples.checkpoint.read_bytes()}
        rows = [json.loads(line) for line in files["metrics.jsonl"].splitlines()]
        row = rng.choice([each for each in rows if each["step"] <= 10])
        row[rng.choice(sorted(row.keys() - {"step", "kind"}))] = rng.choice(NO_NUMBERS)
        files["metrics.jsonl"] = "".join(json.dumps(each) + "\n" for each in rows).encode()
        return Case(files, opening.resume_in_place, must_be_refused=True)

    def packed(self, state: dict[str, Any]) -> bytes:
        place = self.samples.root / "hostile.safetensors"
        save_checkpoint(place, state)
        return place.read_bytes()


def odd_keywords(rng: random.Random) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key in rng.sample(KEYS, rng.choice([1, 1, 2, 3])):
        value = rng.choice(rng.choice([REACHING, REACHING, HARMLESS, ODD_VALUES]))
        found[key] = rng.choice([value, value, [value], {rng.choice(KEYS): value}])
    return found


def without_trackers(check: Check) -> Check:
    def watched(folder: Path) -> None:
        check(folder)
        assert not {"mlflow", "wandb"} & sys.modules.keys(), "a file has started a tracker"

    return watched
