"""What is tried on a log: a handful of trainings that differ where logs differ, and how long each takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.lion import LIONConfig
from rl_training.algorithms.recipe import get_recipe
from rl_training.config.limits import Limit
from rl_training.config.run import TrainConfig, load_config
from rl_training.core.machine import choose_device
from rl_training.core.spaces import Spaces
from rl_training.core.types import PENALTIES, Facts, State
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.splits import FEWEST_EPISODES
from rl_training.runs.options import OWN_DATA
from rl_training.sweeps.plan import SweepRun, Task

WIDTHS = (64, 64)
"""Logs of plants are smooth and have few columns; wider networks only take longer."""
WIDE_WIDTHS = (256, 256)
MANY_NUMBERS = 24
"""Observed and acted numbers from which the wider networks are taken."""
LEAST_UPDATES, MOST_UPDATES = 1_000, 20_000
WARM_UP, TIMED = 3, 20
FEW_MINUTES = 5.0
SNAPSHOTS = 2
"""Policies of a training that are candidates: half way, and at its end; with few minutes only the last."""
TRAINING_SHARE = 0.6
"""Of the minutes; the rest is for the judge."""
DIALS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Positions of a policy with a dial that are candidates of their own; 0 is what is done today, imitated."""


LIMITS = (0.25, 0.5, 1.0)
"""Shares of the limit that a policy whose limit is chosen while it runs is a candidate with."""


@dataclass(frozen=True)
class Recipe:
    """One thing to try: an algorithm with settings that set it apart."""

    name: str
    algo: str
    settings: Facts
    updates: int | None = None
    """a number of updates that the algorithm needs whatever the minutes are"""
    spare: bool = False
    """left out where minutes are few"""
    stages: Mapping[str, int] = field(default_factory=dict)
    """updates of each of its stages, in order, where it has several: each takes a time of its own"""

    def at_length(self, stages: Mapping[str, int]) -> Recipe:
        """The same with stages of these lengths."""
        settings = {**self.settings, **stages}
        return replace(self, settings=settings, updates=sum(stages.values()), stages=stages)


STAGES = {
    name: int(LIONConfig.model_fields[name].default)
    for name in ("model_updates", "behavior_updates", "policy_updates")
}
CONTINUOUS = (
    Recipe("bc", "bc", {}, spare=True),  # LION at dial 0 is the same
    Recipe("lion", "lion", {}).at_length(STAGES),
    Recipe("td3_bc", "td3_bc", {"alpha": 2.5}),
    Recipe("td3_bc-bold", "td3_bc", {"alpha": 40.0}),
    Recipe("iql", "iql", {"beta": 3.0}),
    Recipe("iql-bold", "iql", {"beta": 10.0, "expectile": 0.9}, spare=True),
)
WITH_CHOICES = (
    Recipe("bc", "bc", {}),
    Recipe("iql", "iql", {"beta": 3.0}),
    Recipe("iql-bold", "iql", {"beta": 10.0, "expectile": 0.9}, spare=True),
    Recipe("awac", "awac", {}),
)


PENALISED = ("lion", "td3_bc-bold", "iql")
"""What is tried with costs taken off the reward as well."""
STRENGTHS = {"careful": (0.5, True), "strict": (5.0, False)}
"""Weights of penalties: what one takes off of rewards on average, where a cost is at its limit or as logged,
in standard deviations of the reward; and whether it is left out where minutes are few."""


def portfolio(
    spaces: Spaces,
    minutes: float,
    whole: TransitionDataset | None = None,
    limits: Sequence[Limit] = (),
) -> tuple[Recipe, ...]:
    """What is tried where actions are like this, and in so much time: to judge many takes as long as to train
    them. Where costs of `whole` are limited, trainings that mind them as well.
    """
    recipes = list(WITH_CHOICES if any(spaces.choices) else CONTINUOUS)
    brief = minutes < FEW_MINUTES
    if brief:
        recipes = [each for each in recipes if not each.spare]
    if whole is not None and limits:
        minding = minding_costs(recipes, whole, limits)
        if len(whole.cost_names) == 1 and not any(spaces.choices):
            steps = round(float(whole.episode_costs()[1].mean()))
            minding.append(Recipe("caps", "caps", {"episode_steps": steps}, spare=True))
        recipes += [each for each in minding if not (brief and each.spare)]
    return tuple(recipes)


def minding_costs(
    recipes: Sequence[Recipe], whole: TransitionDataset, limits: Sequence[Limit]
) -> list[Recipe]:
    """Imitation of episodes that kept the limits, and costs taken off the reward, lightly and heavily."""
    found = [
        replace(each, name=f"{each.name}-{word}", settings={**each.settings, "penalty": weights}, spare=spare)
        for word, (strength, spare) in STRENGTHS.items()
        if (weights := penalties(whole, limits, strength))
        for each in recipes
        if each.name in PENALISED
    ]
    if episodes_kept(whole, limits) >= 2 * FEWEST_EPISODES:
        found.insert(0, Recipe("bc-safe", "bc", {"episodes_within_limits": True}))
    return found


def penalties(whole: TransitionDataset, limits: Sequence[Limit], strength: float) -> dict[str, float]:
    """A weight for every cost: so many standard deviations of the reward for a cost that is at its limit on
    average, or as high as it was logged where that is more.
    """
    totals, steps = whole.episode_costs()
    spread, found = float(whole.rewards.double().std()), {}
    for limit in limits:
        logged = totals[:, whole.cost_names.index(limit.name)].sum() / steps.sum()
        allowed = limit.bound if limit.per == "step" else limit.bound / steps.mean()
        if (level := max(float(logged), float(allowed))) > 0.0:
            found[limit.name] = float(f"{strength * spread / level:.3g}")
    return found


def episodes_kept(whole: TransitionDataset, limits: Sequence[Limit]) -> int:
    """Episodes that kept every limit."""
    totals, steps = whole.episode_costs()
    kept = [
        limit.of_episodes(totals[:, whole.cost_names.index(limit.name)], steps) <= limit.bound
        for limit in limits
    ]
    return int(np.logical_and.reduce(kept).sum())


@dataclass(frozen=True)
class Common:
    """What all trainings of one log share."""

    data: Facts
    """dataset fields of a config: where the log lies and what its columns are"""
    spaces: Spaces
    gamma: float
    seed: int
    held_out: float
    minutes: float

    def config(self, recipe: Recipe, folder: Path, updates: int) -> TrainConfig:
        """The config of one training, in a folder of its own."""
        numbers = self.spaces.obs_dim + self.spaces.action_dim
        settings: State = {
            **self.data,
            "hidden_sizes": list(WIDTHS if numbers < MANY_NUMBERS else WIDE_WIDTHS),
            "normalize_observations": True,
            "validation_share": self.held_out,
            "dataset_seed": self.seed,
            "judge_at_end": False,
            "keep_checkpoints": SNAPSHOTS,
            **recipe.settings,
        }
        snapshots = SNAPSHOTS if self.minutes >= FEW_MINUTES and recipe.algo != "bc" else 1
        known = get_recipe(recipe.algo).settings.model_fields
        if "gamma" in known:
            settings["gamma"] = self.gamma
        run: State = {
            "algo": recipe.algo,
            "seed": self.seed,
            "total_timesteps": updates,
            "checkpoint_interval": max(1, updates // snapshots),
            "log_interval": max(1, updates // 20),
            "output_dir": str(folder / recipe.name),
        }
        given = [(f"algo_kwargs.{key}", value) for key, value in settings.items() if key in known]
        example: list[tuple[str, object]] = [("algo_kwargs.columns", {})]
        example += [("algo_kwargs.action_low", None), ("algo_kwargs.action_high", None)]
        return load_config(OWN_DATA, [*given, *run.items()], start=example)


def seconds_per_update(config: TrainConfig, dataset: TransitionDataset, spaces: Spaces) -> float:
    """Processor time of an update, measured on rows of the log; compiling would only make it shorter."""
    settings = config.run_config()
    recipe = get_recipe(config.algo)
    learner = recipe.build_learner(settings, spaces, device=choose_device("cpu"))
    batch = rows_for(learner, dataset, spaces, settings.batch_size)
    return seconds_of(lambda: learner.update(batch, global_step=0))


def seconds_of(update: Callable[[], object]) -> float:
    """Processor time of one call, after the first few."""
    for _ in range(WARM_UP):
        update()
    began = time.process_time()
    for _ in range(TIMED):
        update()
    return (time.process_time() - began) / TIMED


def seconds_of_stages(
    recipe: Recipe, common: Common, folder: Path, dataset: TransitionDataset, spaces: Spaces
) -> float:
    """Processor time of a training in stages, measured stage by stage: those before it last one update."""
    total, before = 0.0, dict[str, int]()
    for name, updates in recipe.stages.items():
        cut = recipe.at_length({**recipe.stages, **before})
        config = common.config(cut, folder, sum(cut.stages.values()))
        total += updates * seconds_per_update(config, dataset, spaces)
        before[name] = 1
    return total


def rows_for(
    learner: Learner, dataset: TransitionDataset, spaces: Spaces, count: int
) -> dict[str, torch.Tensor]:
    """A batch of the right shapes; its numbers do not matter."""
    generator = torch.Generator().manual_seed(0)
    rows = dataset.with_fields(["obs", "actions", "rewards", "next_obs", "dones"]).sample(
        count, generator=generator
    )
    batch = {name: value.float() for name, value in rows.items()}
    batch["actions"] = torch.from_numpy(spaces.encode(batch["actions"].numpy()))
    wide = {"next_actions": batch["actions"], "costs": batch["rewards"].unsqueeze(-1)}
    for need in (*learner.needs, PENALTIES):
        batch.setdefault(need, wide.get(need, batch["rewards"]))
    return batch


def affordable(costs: Sequence[float], minutes: float, taken: float = 0.0) -> list[int]:
    """Updates of each training, so that all of them take an equal part of the training's share, less the
    seconds that are `taken`.
    """
    each = (minutes * 60.0 * TRAINING_SHARE - taken) / max(1, len(costs))
    return [min(MOST_UPDATES, max(LEAST_UPDATES, int(each / cost) // 100 * 100)) for cost in costs]


def tasks_of(configs: Sequence[tuple[str, TrainConfig]]) -> list[Task]:
    """One task a training, as sweeps know them: finished ones are left alone, stopped ones go on."""
    runs = (SweepRun.inside(Path(config.output_dir), name, config) for name, config in configs)
    return [Task((run,)) for run in runs]
