"""An algorithm that learns nothing and writes down everything, made with the doors that anyone may use.

Its actor says how many updates were made: the deterministic action is 1/4 + updates / 1024, the drawn one
1/2 + updates / 1024, in [-1, 1]. So every number that a run in a `World` gives is known beforehand.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from fake_world import World, numbered_rows
from rl_training.algorithms import Recipe
from rl_training.algorithms.learner import (
    Batch,
    Learner,
    LearnerConfig,
    MetricTensors,
    Noise,
    NoiseShapes,
    UpdateResult,
)
from rl_training.config.data import OfflineFields, OnlineDataFields
from rl_training.config.run import OnlineFields, TrainConfig
from rl_training.data import TransitionDataset
from rl_training.models.actors import Actor
from rl_training.models.models import PolicyModel
from rl_training.models.networks import NetworkConfig
from rl_training.runs.resume import resume_training
from rl_training.runs.tracking import read_metrics
from rl_training.runs.train import train
from rl_training.runtime.callbacks import Callback, Run, TrainResult

MODE, DRAWN, PER_UPDATE = 0.25, 0.5, 1.0 / 1024.0


class Level(Actor):
    """Acts by the number of updates alone."""

    kind = "level"
    draws = "action = 1/2 + updates / 1024"

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        super().__init__(*arguments, **keywords)
        self.updates = nn.Parameter(torch.zeros(()), requires_grad=False)

    def mode(self, obs: Tensor) -> Tensor:
        return 0.0 * obs[..., :1] + MODE + self.updates[..., None, None] * PER_UPDATE

    def draw(self, obs: Tensor, noise: Tensor) -> Tensor:
        return self.mode(obs) + (DRAWN - MODE)


class FakeModel(PolicyModel):
    """The actor, and two networks for optimisers of the group `critic`."""

    actor_class = Level

    def build(self, generator: torch.Generator | None) -> None:
        super().build(generator)
        self.critic, self.value = nn.Linear(1, 1), nn.Linear(1, 1)


@dataclass(frozen=True)
class Update:
    """What an update was given."""

    batch: dict[str, list[Any]]
    rates: dict[str, float]
    global_step: int
    updates: int

    @property
    def rows(self) -> list[int]:
        """Numbers of the rows of `numbered_rows`."""
        return [int(obs[0]) for obs in self.batch["obs"]]


class Fake(Learner):
    """Counts its updates in its actor and keeps what it was given."""

    seen: list[Update]
    compiled_with: str | None

    def setup(self) -> None:
        self.seen, self.compiled_with = [], None
        self.actor = self.part("actor", Level)
        self.add_optimizer("actor", self.actor.net.parameters(), "actor")
        self.add_optimizer("critic", self.part("critic", nn.Linear).parameters(), "critic")
        self.add_optimizer("value", self.part("value", nn.Linear).parameters(), "critic")

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {}

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        self.actor.updates.add_(1.0)
        return {"reward_mean": batch["rewards"].mean(-1), "made": self.actor.updates.clone()}

    def update(self, batch: Batch, *, global_step: int) -> UpdateResult:
        rates = {name: float(each.learning_rate) for name, each in self.optimizers.items()}
        given = {name: values.tolist() for name, values in batch.items()}
        self.seen.append(Update(given, rates, global_step, self.updates))
        return super().update(batch, global_step=global_step)

    def compile(self, backend: str = "inductor") -> None:
        self.compiled_with = backend


class FakeOfflineConfig(LearnerConfig, NetworkConfig, OfflineFields):
    """Settings of the offline variant."""


class FakeOnlineConfig(LearnerConfig, NetworkConfig, OnlineFields, OnlineDataFields):
    """Settings of the online variant."""


class FakeBesideConfig(LearnerConfig, NetworkConfig, OnlineFields, OnlineDataFields):
    """Settings of the online variant that may have data beside what it collects."""


OFFLINE = Recipe(name="fake_offline", learner=Fake, model=FakeModel, settings=FakeOfflineConfig)
ONLINE = Recipe(name="fake_online", learner=Fake, model=FakeModel, settings=FakeOnlineConfig)
BESIDE = Recipe(name="fake_beside", learner=Fake, model=FakeModel, settings=FakeBesideConfig)


class Witness(Callback):
    """Keeps the run, so that a test can look at its learner and counters."""

    run: Run

    def on_train_start(self, run: Run) -> None:
        self.run = run


class Scripted:
    """An evaluator that gives numbers of one's choice, one after the other, and notes the steps."""

    def __init__(self, *values: float | None, name: str = "eval_return_mean") -> None:
        self.values, self.name, self.steps = list(values), name, list[int]()

    def __call__(self, run: Run) -> dict[str, float | None]:
        self.steps.append(run.global_step)
        return {self.name: self.values[len(self.steps) - 1]}


@dataclass(frozen=True)
class Story:
    """A finished run and what its learner saw."""

    result: TrainResult
    run: Run

    @property
    def learner(self) -> Fake:
        assert isinstance(self.run.trainer.learner, Fake)
        return self.run.trainer.learner

    @property
    def seen(self) -> list[Update]:
        return self.learner.seen

    def rates(self, name: str = "actor") -> list[float]:
        return [update.rates[name] for update in self.seen]

    @property
    def steps(self) -> list[int]:
        """`global_step` of every update."""
        return [update.global_step for update in self.seen]

    def rows(self, kind: str) -> list[dict[str, Any]]:
        return [row for row in read_metrics(self.result.run_dir) if row["kind"] == kind]

    @property
    def checkpoints(self) -> list[str]:
        return sorted(file.stem for file in (self.result.run_dir / "checkpoints").iterdir())


def fake_config(algo: str, output_dir: Path, **settings: Any) -> TrainConfig:
    """Settings of the run and of the algorithm, mixed; the rest is as small as can be."""
    small = {"hidden_sizes": [], "batch_size": 4, "eval_interval": 0, "compile": False}
    collects = algo in ("fake_online", "fake_beside")
    online = {"learning_starts": 0, "buffer_capacity": 100} if collects else {}
    run: dict[str, Any] = {"algo": algo, "env_id": None, "seed": 3, "total_timesteps": 10, "device": "cpu"}
    run |= {"eval_episodes": 0, "log_interval": 100, "checkpoint_interval": 0, "output_dir": str(output_dir)}
    if collects:
        run["env_id"] = "World"
    own = {name: value for name, value in settings.items() if name in TrainConfig.model_fields}
    kwargs = {name: value for name, value in settings.items() if name not in own}
    return TrainConfig(**{**run, **own}, algo_kwargs={**small, **online, **kwargs})


def offline(
    output_dir: Path,
    *,
    world: World | None = None,
    dataset: TransitionDataset | None = None,
    callbacks: Sequence[Callback] = (),
    evaluators: Sequence[Any] = (),
    **settings: Any,
) -> Story:
    """An offline run over `numbered_rows`; one update per step."""
    bounds = {} if world else {"action_low": [-1.0], "action_high": [1.0]}
    config = fake_config("fake_offline", output_dir, **{**bounds, **settings})
    witness = Witness()
    result = train(
        config,
        dataset=dataset or numbered_rows(),
        env=None if world is None else world.make,
        callbacks=[witness, *callbacks],
        evaluators=evaluators,
        quiet=True,
    )
    return Story(result, witness.run)


def online(
    output_dir: Path,
    *,
    world: World | None = None,
    callbacks: Sequence[Callback] = (),
    evaluators: Sequence[Any] = (),
    **settings: Any,
) -> Story:
    """An online run in a `World`."""
    config = fake_config("fake_online", output_dir, **settings)
    witness = Witness()
    result = train(
        config,
        env=(world or World()).make,
        callbacks=[witness, *callbacks],
        evaluators=evaluators,
        quiet=True,
    )
    return Story(result, witness.run)


def go_on(
    story: Story,
    total_timesteps: int,
    *,
    world: World | None = None,
    callbacks: Sequence[Callback] = (),
    **more: Any,
) -> Story:
    """The same run, resumed from its newest checkpoint."""
    witness = Witness()
    is_offline = story.run.config.algo == "fake_offline"
    result = resume_training(
        story.result.run_dir,
        total_timesteps=total_timesteps,
        dataset=numbered_rows() if is_offline else None,
        env=None if world is None else world.make,
        callbacks=[witness, *callbacks],
        quiet=True,
        **more,
    )
    return Story(result, witness.run)
