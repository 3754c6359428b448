"""The fits of a judgement: the library's training loop over random rows of the log, with a falling rate."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner
from rl_training.core.checkpoints import load_checkpoint, read_header, save_checkpoint
from rl_training.core.errors import RunFailed
from rl_training.core.streams import RandomStream, derive_seed, torch_generator
from rl_training.judging.settings import JudgeConfig
from rl_training.runtime.compiling import missing_for_compiling
from rl_training.runtime.loop import Phase, Trainer

LAST_RATE = 0.05
"""Share of the learning rate that is left at the end."""

RATE_STEPS = 100
"""How often the rate changes on the way."""

STEPS_PER_SAVE = 10
"""Changes of the rate from one checkpoint to the next."""

WORTHWHILE = 250_000
"""Networks x updates from which compiling (20 to 30 s) pays."""

FITS_DEPEND_ON = frozenset(
    {
        "gamma",
        "discount_by_time",
        "seed",
        "action_draws",
        "members",
        "hidden_sizes",
        "batch_size",
        "learning_rate",
        "tau",
        "updates",
        "compile",
    }
    | {"model_members", "model_hidden_sizes", "model_updates"}
)
"""Settings without which a kept fit is another one; limits and confidence are applied afterwards."""

Told = Callable[[str, int, int], None]
"""(what is being fitted, updates done, updates in all)"""


@dataclass(frozen=True)
class Keeping:
    """Where a judgement keeps its fits, and what makes it this judgement and no other."""

    folder: Path
    key: str

    def file(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"

    def saved(self, name: str) -> dict[str, Any] | None:
        """What an earlier call of the same judgement left."""
        file = self.file(name)
        if not file.is_file() or read_header(file).get("judgement") != self.key:
            return None
        return load_checkpoint(file)


def judgement_key(config: JudgeConfig, arrays: Iterable[npt.NDArray[Any]]) -> str:
    """One text for the same settings of fits, log and policies; another for any others."""
    settings = {name: value for name, value in config.to_dict().items() if name in FITS_DEPEND_ON}
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode())
    for values in arrays:
        digest.update(str(values.shape).encode() + values.tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class Rows:
    """The log as the loop's source of batches: rows drawn with replacement, the same for all of a stack."""

    gather: Callable[[Tensor], dict[str, Tensor]]
    count: int

    def __len__(self) -> int:
        return self.count

    def draw(self, unit: Tensor, step: int) -> dict[str, Tensor]:
        return self.gather((unit * self.count).long())


@dataclass
class Fit:
    """One fit as the loop sees it: sets the rate, says how far it is, and keeps what it has."""

    name: str
    updates: int
    tell: Told
    notice: Callable[[int], None]
    memory: dict[str, list[Any]]
    keeping: Keeping | None
    stop_reason: str | None = None
    failure: RunFailed | None = None
    trainer: Trainer[Fit] = field(init=False)

    def follow(self, trainer: Trainer[Fit], member: int | None) -> None:
        self.trainer = trainer

    def emit(self, hook: str, *arguments: Any) -> None:
        done = self.trainer.counters.global_step
        if hook == "on_step_start" and done % self._every == 0:
            self.trainer.learner.set_learning_rate_scale(1.0 - (1.0 - LAST_RATE) * done / self.updates)
            self._mark(done)
        if hook == "on_step_end" and (done % (STEPS_PER_SAVE * self._every) == 0 or done == self.updates):
            self._save()

    def request_stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    def finish(self) -> None:
        self._mark(self.updates)

    def resume(self) -> None:
        """Go on from what an earlier call of the same judgement has kept."""
        saved = None if self.keeping is None else self.keeping.saved(self.name)
        if saved is not None:
            self.trainer.load_state_dict(saved)
            self.memory.update(saved["memory"])

    @property
    def _every(self) -> int:
        return max(1, self.updates // RATE_STEPS)

    def _mark(self, done: int) -> None:
        self.tell(self.name, done, self.updates)
        self.notice(done)

    def _save(self) -> None:
        if self.keeping is None:
            return
        self.keeping.folder.mkdir(parents=True, exist_ok=True)
        state = {"judgement": self.keeping.key, "memory": self.memory}
        state |= self.trainer.state_dict(None, with_replay=False)
        save_checkpoint(self.keeping.file(self.name), state)


def fit(
    learner: Learner,
    rows: Rows,
    *,
    name: str,
    updates: int,
    config: JudgeConfig,
    tell: Told,
    networks: int = 1,
    notice: Callable[[int], None] = lambda done: None,
    memory: dict[str, list[Any]] | None = None,
    keeping: Keeping | None = None,
) -> None:
    """Train `learner`; `notice` is called about `RATE_STEPS` times, and `memory` is kept with the weights."""
    wanted = networks * updates >= WORTHWHILE if config.compile == "auto" else config.compile
    if wanted and missing_for_compiling(learner.device.type) is None:
        learner.compile()
    follower = Fit(name, updates, tell, notice, {} if memory is None else memory, keeping)
    drawn = RandomStream([torch_generator(config.seed, "judge", name)], "unit64")
    phase = Phase("offline", updates, rows)
    trainer = Trainer(learner, [phase], [follower], batch_size=config.batch_size, batches=drawn)
    follower.resume()
    trainer.train()
    follower.finish()


def resample_weights(members: int, episodes: int, seed: int) -> Tensor:
    """How often each member sees each episode, `[members, episodes]`: a bootstrap over whole episodes."""
    generator = torch_generator(derive_seed(seed, "judge"), "resamples")
    drawn = torch.randint(episodes, (members, episodes), generator=generator)
    counts = torch.zeros(members, episodes)
    return counts.scatter_add_(1, drawn, torch.ones(members, episodes))
