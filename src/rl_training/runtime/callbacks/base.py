"""The hooks of a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rl_training.core.plain import Numbers, State

if TYPE_CHECKING:
    from rl_training.algorithms.results import UpdateResult
    from rl_training.runtime.run import Run


class Callback:
    """Override what you need; every hook does nothing here. `run.request_stop(reason)` ends the run."""

    def on_train_start(self, run: Run) -> None:
        """Before the first step, also after a resume."""

    def on_phase_start(self, run: Run) -> None:
        """Before the first step of a phase, `run.phase`."""

    def on_step_start(self, run: Run) -> None:
        """Before an update (offline) or a round of all environments (online)."""

    def on_update_end(self, run: Run, result: UpdateResult) -> None:
        """After every gradient update; reading `result.metrics` waits for the device."""

    def on_step_end(self, run: Run) -> None:
        """After a step and the updates that belong to it; the run's state is consistent here."""

    def on_eval_end(self, run: Run, metrics: Numbers, scheduled: bool) -> None:
        """After an evaluation; `scheduled` is false for the one that only closes a run."""

    def on_train_end(self, run: Run) -> None:
        """After the last step, before the closing evaluation."""

    def close(self, run: Run) -> None:
        """Always called once at the very end, also when the run failed."""

    def state_dict(self) -> State:
        """What must survive a resume."""
        return {}

    def load_state_dict(self, state: State) -> None:
        """Restore what `state_dict` gave."""


class Interval:
    """Says once per `every` steps that it is time, also where a step jumps over the mark."""

    def __init__(self, every: int) -> None:
        self.every = every
        self.last = 0

    def start(self, step: int) -> None:
        self.last = step

    def due(self, step: int) -> bool:
        if not self.every or step // self.every == self.last // self.every:
            return False
        self.last = step
        return True
