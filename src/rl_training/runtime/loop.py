"""The training loop, once. Runs differ only in their phases and callbacks."""

from __future__ import annotations

import os
import shutil
import signal
import sysconfig
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any, Generic, Literal, Protocol, TypeVar

from torch import Tensor

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.stack import keep_members, learner_state
from rl_training.core.errors import RunFailed
from rl_training.core.streams import RandomStream
from rl_training.core.types import State
from rl_training.runtime.collect import FinishedEpisode


@contextmanager
def orderly_stop(stop: Callable[[int], None]) -> Iterator[None]:
    """Call `stop(signal number)` on the first signal; a second one acts as it would without us."""
    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may set handlers
        return
    previous = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def handle(number: int, frame: FrameType | None) -> None:
        for each, handler in previous.items():
            signal.signal(each, handler)
        stop(number)

    for number in previous:
        signal.signal(number, handle)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


WORTHWHILE_UPDATES = 20_000
"""Compiling costs 13 to 26 s from an empty cache. IQL at 256 x 256 has gained that back after 6,400 updates,
BC, the smallest of all, after 25,000 (benchmarks/speed/compile_time.py)."""


def apply_compile(
    learner: Learner, setting: bool | Literal["auto"], updates_left: int, stored: bool | None
) -> bool:
    """Compile the learner where wanted; a resumed run keeps its mode, as results differ in rounding."""
    wanted = updates_left >= WORTHWHILE_UPDATES if setting == "auto" else setting
    if stored is not None:
        wanted = stored
    lacking = missing_for_compiling(learner.device.type) if wanted else None
    if lacking is not None:
        warnings.warn(f"{lacking}: updates run uncompiled, and slower", stacklevel=2)
        return False
    if wanted:
        learner.compile()
    return wanted


def missing_for_compiling(device_type: str) -> str | None:
    """What torch.compile lacks on this machine, in words; none if it can run."""
    if device_type == "cpu":
        names = [os.environ["CXX"]] if os.environ.get("CXX") else ["g++", "clang++", "c++"]
        if not any(shutil.which(name) for name in names):
            return "no C++ compiler was found"
        if not Path(sysconfig.get_path("include"), "Python.h").is_file():
            return "the header files of Python were not found"
        return None
    if device_type == "cuda":
        return None if find_spec("triton") else "the package triton was not found"
    return f"updates cannot be compiled for {device_type} devices"


PHASE_NAMES = ("offline", "warm-up", "online")


class BatchSource(Protocol):
    """Where batches come from: a dataset, a replay buffer, or both."""

    def __len__(self) -> int:
        """Rows to draw from; without any, updates wait."""

    def draw(self, unit: Tensor, step: int) -> dict[str, Tensor]:
        """The rows that numbers in [0, 1) pick, `[*S, B]`; `step` counts those of the phase."""


class Collection(Protocol):
    """Anything that steps environments and stores what it sees."""

    def step(self, learner: Learner, stored: int) -> int:
        """Act once everywhere, store the transitions, and say how many there are (per seed)."""

    def state_dict(self, member: int | None, *, with_replay: bool) -> State: ...

    def take_episodes(self, member: int | None) -> list[FinishedEpisode]: ...

    def keep(self, members: Sequence[int]) -> None:
        """Go on with some of the seeds of a stack."""

    def close(self) -> None: ...


class TrainerListener(Protocol):
    """What the loop asks of those it trains for: a run of a seed, or anything else that needs a fit."""

    stop_reason: str | None
    failure: RunFailed | None

    def follow(self, trainer: Trainer[Any], member: int | None) -> None:
        """Hear who trains, and which of a stack of seeds is one's own."""

    def emit(self, hook: str, *arguments: object) -> None:
        """Hear of a moment of the training; the names are those of `Callback`."""

    def request_stop(self, reason: str) -> None: ...

    def finish(self) -> None: ...


Followed = TypeVar("Followed", bound=TrainerListener)


@dataclass(frozen=True)
class Phase:
    """A stretch of training: where batches come from, whether environments are stepped, how much is updated.

    Without `collection` a step is one update; with it, a step is one transition, and after every
    `train_frequency` rounds of all environments `updates_per_step` updates per stored transition are made.
    `online_span` says that the phase follows offline training: the learner hears how much of that many steps
    is done. With `evaluate_first` the policy is evaluated before the first step.
    """

    name: str
    steps: int
    source: BatchSource
    collection: Collection | None = None
    learning_starts: int = 0
    train_frequency: int = 1
    updates_per_step: int = 1
    batch_size: int | None = None
    """none: that of the run"""
    online_span: int = 0
    evaluate_first: bool = False


@dataclass
class Counters:
    """Where a run is. `global_step` counts what `total_timesteps` counts."""

    global_step: int = 0
    gradient_steps: int = 0
    env_steps: int = 0
    phase: int = 0
    phase_step: int = 0
    rounds: int = 0
    owed_updates: int = 0
    """Earned by stored transitions, made when a round is complete."""
    due_updates: int = 0
    """Left of the round of updates under way; not zero only where a stop fell inside one."""


class Trainer(Generic[Followed]):
    """Drives one learner (of one seed or a stack of them) through the phases."""

    def __init__(
        self,
        learner: Learner,
        phases: Sequence[Phase],
        runs: Sequence[Followed],
        *,
        batch_size: int,
        batches: RandomStream,
        update_budget: int | None = None,
    ) -> None:
        self.learner, self.phases, self.runs = learner, list(phases), list(runs)
        self.batch_size, self.batches, self.update_budget = batch_size, batches, update_budget
        self.counters = Counters()
        self._entered: int | None = None
        self._number_runs()

    def train(self) -> None:
        """Run all phases to their end, or until every run has asked to stop."""
        self.start()
        while (phase := self.begin_step()) is not None:
            self._advance(phase)
            self.end_step()

    def start(self) -> None:
        self._each("on_train_start")
        self._keep_to_budget()  # a resumed run may have spent it already

    def begin_step(self) -> Phase | None:
        """The phase of the step that is due; none when all are done or every run has asked to stop."""
        phase = None if self._stopped() else self._current_phase()
        if phase is not None:
            if self._entered != self.counters.phase:
                self._entered = self.counters.phase
                if not self.counters.phase_step:  # one that is resumed in the middle has begun before
                    self._each("on_phase_start")
            self._each("on_step_start")
        return phase

    def end_step(self) -> None:
        self._each("on_step_end")
        self._retire_stopped()

    def _number_runs(self) -> None:
        for index, run in enumerate(self.runs):
            run.follow(self, None if len(self.runs) == 1 else index)

    def _retire_stopped(self) -> None:
        """A seed of a stack that is done is closed and taken out; the others go on without it."""
        going = [index for index, run in enumerate(self.runs) if not run.stop_reason]
        if len(going) in (0, len(self.runs)):
            return
        for run in self.runs:
            if run.stop_reason and run.failure is None:
                run.finish()
        compiled = self.learner.compiled
        self.learner = keep_members(self.learner, going)
        if compiled:
            self.learner.compile()
        self.batches = self.batches.keep(going)
        for collection in self._collections():
            collection.keep(going)
        self.runs = [self.runs[index] for index in going]
        self._number_runs()

    def _current_phase(self) -> Phase | None:
        """The phase that is due. The last one stays current when it is done: a larger total reopens it."""
        counters = self.counters
        while self.phases[counters.phase].steps <= counters.phase_step and not counters.due_updates:
            if counters.phase + 1 == len(self.phases):
                return None
            counters.phase, counters.phase_step = counters.phase + 1, 0
        return self.phases[counters.phase]

    def _advance(self, phase: Phase) -> None:
        """One step: an update, or one round of all environments and the updates it completes."""
        counters = self.counters
        if phase.collection is None:
            counters.due_updates = 1
            self.make_updates(phase)
            self._count(1)
            return
        if not counters.due_updates:
            self.collected(phase, phase.collection.step(self.learner, counters.env_steps))
        self.make_updates(phase)

    def collected(self, phase: Phase, stored: int) -> None:
        """Count a round of transitions, and the updates that it earns."""
        counters = self.counters
        counters.env_steps += stored
        counters.rounds += 1
        self._count(stored)
        if counters.env_steps > phase.learning_starts:
            counters.owed_updates += phase.updates_per_step * stored
        if counters.rounds % phase.train_frequency == 0 and len(phase.source):
            counters.due_updates += counters.owed_updates
            counters.owed_updates = 0

    def _count(self, steps: int) -> None:
        self.counters.global_step += steps
        self.counters.phase_step += steps

    def make_updates(self, phase: Phase) -> None:
        """All updates that are due, unless every run asks to stop before."""
        counters = self.counters
        if phase.online_span:
            self.learner.go_online(min(1.0, counters.phase_step / phase.online_span))
        while counters.due_updates and not self._stopped():
            result = self.learner.update(self.sample(phase), global_step=counters.global_step)
            counters.due_updates -= 1
            counters.gradient_steps += result.num_gradient_steps
            self._each("on_update_end", result)
            self._keep_to_budget()

    def _keep_to_budget(self) -> None:
        if self.update_budget is not None and self.counters.gradient_steps >= self.update_budget:
            for run in self.runs:
                run.request_stop("update budget reached")

    def sample(self, phase: Phase) -> dict[str, Tensor]:
        """A batch of rows drawn with replacement, `[*S, B, …]`."""
        unit = self.batches.next(phase.batch_size or self.batch_size)
        return phase.source.draw(unit, self.counters.phase_step)

    def _each(self, hook: str, *arguments: object) -> None:
        for run in self.runs:
            try:
                run.emit(hook, *arguments)
            except RunFailed as failure:
                if len(self.runs) == 1:
                    raise
                run.failure = failure  # one seed that diverges does not take the others with it
                run.request_stop(str(failure))

    def _stopped(self) -> bool:
        return all(run.stop_reason for run in self.runs)

    def state_dict(self, member: int | None, *, with_replay: bool) -> State:
        """Everything the next step of one seed depends on."""
        drawn = self.batches.state_dict() if member is None else self.batches.member(member)
        state = {
            "counters": asdict(self.counters),
            "learner": learner_state(self.learner, member),
            "streams": {"batches": drawn},
        }
        if self.collection is not None:
            state |= self.collection.state_dict(member, with_replay=with_replay)
        return state

    @property
    def phase(self) -> Phase:
        """The present phase."""
        return self.phases[self.counters.phase]

    @property
    def collection(self) -> Collection | None:
        """What steps environments in the present phase."""
        return self.phase.collection

    def _collections(self) -> list[Collection]:
        """Every collection once: phases may share one."""
        found = [phase.collection for phase in self.phases if phase.collection is not None]
        return list({id(collection): collection for collection in found}.values())

    def take_episodes(self, member: int | None) -> list[FinishedEpisode]:
        return [] if self.collection is None else self.collection.take_episodes(member)

    def load_state_dict(self, state: State) -> None:
        """Go on from a single run's checkpoint; collections are restored where they are built."""
        self.counters = Counters(**state["counters"])
        self.learner.load_state_dict(state["learner"])
        self.batches.load_state_dict(state["streams"]["batches"])

    def close(self) -> None:
        for collection in self._collections():
            collection.close()
