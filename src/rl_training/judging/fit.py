"""Fitting networks to a log: batches of its rows, a falling rate, progress, and fits kept between calls."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.algorithms.learner import Learner, LearnerConfig, NoiseShapes
from rl_training.config import setting
from rl_training.core.checkpoints import load_checkpoint, read_header, save_checkpoint
from rl_training.core.errors import RunFailed
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.judging.settings import JudgeConfig
from rl_training.runtime.loop import Phase, Trainer, missing_for_compiling

LAST_RATE = 0.05
"""Share of the learning rate that is left at the end."""

RATE_STEPS = 100
"""How often the rate changes on the way."""

STEPS_PER_SAVE = 10
"""Changes of the rate from one checkpoint to the next."""

WORTHWHILE = 250_000
"""Networks x updates from which compiling (20 to 30 s) pays."""

FITS_DEPEND_ON = frozenset(
    (
        *("gamma", "discount_by_time", "seed", "action_draws", "members", "hidden_sizes", "batch_size"),
        *("learning_rate", "tau", "updates", "compile"),
        *("model_members", "model_hidden_sizes", "model_updates"),
    )
)
"""Settings without which a kept fit is another one; limits and confidence are applied afterwards."""

LAYOUT = 2
"""Of the networks in a kept fit; one of another layout is made anew."""

OnProgress = Callable[[str, int, int], None]
"""(what is being fitted, updates done, updates in all)"""


class BootstrapConfig(LearnerConfig):
    """Keywords of ensembles whose members each see a resample of the episodes."""

    episodes: int = setting(..., "episodes of the log", ge=1)
    resample_seed: int = setting(0, "seed of the bootstrap over episodes", ge=0)


class FittedLearner(Learner):
    """A learner that is fitted to a log: its updates draw nothing at random."""

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {}


@dataclass(frozen=True)
class FitCache:
    """Where a judgement keeps its fits, and what makes it this judgement and no other."""

    folder: Path
    key: str

    @classmethod
    def of(cls, folder: Path, config: JudgeConfig, arrays: Iterable[npt.NDArray[Any]]) -> FitCache:
        """One key for the same settings of fits, log and policies; another for any others."""
        settings = {name: value for name, value in config.to_dict().items() if name in FITS_DEPEND_ON}
        digest = hashlib.sha256(json.dumps([LAYOUT, settings], sort_keys=True).encode())
        for values in arrays:
            digest.update(str(values.shape).encode() + values.tobytes())
        return cls(folder, digest.hexdigest())

    def saved(self, name: str) -> dict[str, Any] | None:
        """What an earlier call of the same judgement left."""
        file = self._file(name)
        if not file.is_file() or read_header(file).get("judgement") != self.key:
            return None
        return load_checkpoint(file)

    def save(self, name: str, state: dict[str, Any]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        save_checkpoint(self._file(name), {"judgement": self.key, **state})

    def _file(self, name: str) -> Path:
        return self.folder / f"{name}.safetensors"


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
    on_progress: OnProgress
    observe: Callable[[int], None]
    history: dict[str, list[Any]]
    cache: FitCache | None
    stop_reason: str | None = None
    failure: RunFailed | None = None
    trainer: Trainer[Fit] = field(init=False)

    def follow(self, trainer: Trainer[Fit], member: int | None) -> None:
        self.trainer = trainer

    def emit(self, hook: str, *arguments: Any) -> None:
        done, every = self.trainer.counters.global_step, max(1, self.updates // RATE_STEPS)
        if hook == "on_step_start" and done % every == 0:
            self.trainer.learner.set_learning_rate_scale(1.0 - (1.0 - LAST_RATE) * done / self.updates)
            self._mark(done)
        if hook == "on_step_end" and (done % (STEPS_PER_SAVE * every) == 0 or done == self.updates):
            self._save()

    def request_stop(self, reason: str) -> None:
        self.stop_reason = self.stop_reason or reason

    def finish(self) -> None:
        self._mark(self.updates)

    def resume(self) -> None:
        """Go on from what an earlier call of the same judgement has kept."""
        saved = None if self.cache is None else self.cache.saved(self.name)
        if saved is not None:
            self.trainer.load_state_dict(saved)
            self.history.update(saved["memory"])

    def _mark(self, done: int) -> None:
        self.on_progress(self.name, done, self.updates)
        self.observe(done)

    def _save(self) -> None:
        if self.cache is not None:
            state = self.trainer.state_dict(None, with_replay=False)
            self.cache.save(self.name, {"memory": self.history, **state})


def fit(
    learner: Learner,
    rows: Rows,
    *,
    name: str,
    updates: int,
    config: JudgeConfig,
    on_progress: OnProgress,
    networks: int = 1,
    observe: Callable[[int], None] = lambda done: None,
    history: dict[str, list[Any]] | None = None,
    cache: FitCache | None = None,
) -> None:
    """Train `learner`; `observe` is called about `RATE_STEPS` times, `history` is kept with the weights."""
    wanted = networks * updates >= WORTHWHILE if config.compile == "auto" else config.compile
    if wanted and missing_for_compiling(learner.device.type) is None:
        learner.compile()
    fitting = Fit(name, updates, on_progress, observe, {} if history is None else history, cache)
    drawn = RandomStream([torch_generator(config.seed, "judge", name)], "unit64")
    phase = Phase("offline", updates, rows)
    trainer = Trainer(learner, [phase], [fitting], batch_size=config.batch_size, batches=drawn)
    fitting.resume()
    trainer.train()
    fitting.finish()


# ---- fits in processes of their own

KeptFit = Callable[..., object]
"""Makes a fit and leaves it in its `cache`, or takes it from there; it travels to another process."""


def say_nothing(name: str, done: int, updates: int) -> None:
    """Progress where nobody looks."""


@contextmanager
def made_beside(
    fits: Sequence[KeptFit], processes: int, cache: FitCache | None
) -> Iterator[Callable[[], None]]:
    """Make `fits` in so many processes meanwhile; what is yielded waits until they lie in the folder.

    A fit that fails there is missing: whoever needs it makes it again, and says what is wrong with it.
    """
    context = multiprocessing.get_context("spawn")
    shares = [fits[first::processes] for first in range(min(processes, len(fits)))]
    started = [context.Process(target=_make, args=(share, cache), daemon=True) for share in shares]
    for process in started:
        process.start()

    def wait() -> None:
        for process in started:
            process.join()

    try:
        yield wait
    finally:
        for process in started:
            process.terminate()
            process.join()


def _make(fits: Sequence[KeptFit], cache: FitCache | None) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever interrupts the judgement ends this process with it
    torch.set_num_threads(1)
    for each in fits:
        with suppress(Exception):
            each(cache=cache)
