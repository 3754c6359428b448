"""What a run without an environment says of its policy in the end: a judgement by logged episodes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from rl_training.config.data import OfflineFields
from rl_training.core.errors import UserError
from rl_training.core.files import write_json_atomic
from rl_training.core.types import State, number
from rl_training.data.splits import LoggedEpisodes
from rl_training.judging.fit import OnProgress
from rl_training.judging.fqe import updates_needed
from rl_training.judging.judge_policies import judge
from rl_training.judging.log import JudgedLog
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import Judgement, PolicyJudgement
from rl_training.runs.directory import JUDGEMENT_FILE
from rl_training.runs.metrics import Progress
from rl_training.runs.saving import Checkpoints
from rl_training.runtime.callbacks import Callback, Run
from rl_training.runtime.loop import orderly_stop

LIGHTER: State = {"importance": False, "model_members": 3}
MODEL_UPDATES = 2000
"""What a run spares itself of a whole judgement: weighing never leads it, and the model only seconds it."""

NUMBERS = (
    *("judge_value", "judge_low", "judge_high", "judge_score", "judge_behaviour"),
    *("judge_difference", "judge_difference_low", "judge_difference_high", "judge_episodes"),
)
NOT_JUDGED: State = dict.fromkeys((*NUMBERS, "judge_verdict", "judge_note"))


class Interrupted(Exception):
    """A signal came while judging."""


class RunJudge:
    """The one judgement of a run, or of all seeds of a stack that end together."""

    def __init__(self, logged: LoggedEpisodes | str | None, settings: OfflineFields) -> None:
        self.logged, self.settings = logged, settings
        self.found: dict[tuple[Path, int], State] = {}

    def numbers_of(self, run: Run, show: OnProgress) -> State:
        """What is known of a run's present policy; all that end with it are judged with it."""
        key = (run.run_dir, run.global_step)
        if key not in self.found:
            ending = [each for each in run.trainer.runs if each.stop_reason] or run.trainer.runs
            self._judge([each for each in ending if each.failure is None], show)
        return self.found[key]

    def _judge(self, runs: Sequence[Run], show: OnProgress) -> None:
        numbers = self._refusal(runs[0])
        judgement = None if numbers else self._judgement(runs, show)
        for index, run in enumerate(runs):
            told = numbers
            if isinstance(judgement, Judgement):
                told = self._told(judgement, judgement.policies[index])
                write_json_atomic(run.run_dir / JUDGEMENT_FILE, single(judgement, index).to_dict())
            elif isinstance(judgement, str):
                told = not_judged(judgement)
            self.found[run.run_dir, run.global_step] = told

    def _refusal(self, run: Run) -> State:
        """Why nothing is judged; empty where it is."""
        if not isinstance(self.logged, LoggedEpisodes):
            return not_judged(self.logged or "no logged episodes")
        if self.settings.judge_at_end is True:
            return {}
        config = self.config
        needed = updates_needed(
            config, JudgedLog.from_dataset(self.logged.dataset, config.gamma, by_time=config.discount_by_time)
        )
        if run.gradient_steps >= needed:
            return {}
        return not_judged(
            f"{run.gradient_steps} updates are fewer than the {needed} of a judgement; "
            "judge_at_end: true judges all the same"
        )

    @property
    def config(self) -> JudgeConfig:
        gamma, updates = self.settings.judge_gamma, self.settings.judge_updates
        of_the_model = min(MODEL_UPDATES, updates or MODEL_UPDATES)
        return JudgeConfig.build(
            {
                **LIGHTER,
                "gamma": gamma,
                "discount_by_time": isinstance(self.logged, LoggedEpisodes) and self.logged.by_time,
                "updates": updates,
                "model_updates": of_the_model,
            }
        )

    def _judgement(self, runs: Sequence[Run], show: OnProgress) -> Judgement | str:
        assert isinstance(self.logged, LoggedEpisodes)
        stopped: list[int] = []

        def tell(name: str, done: int, total: int) -> None:
            if stopped:
                raise Interrupted
            show(f"judging ({name})", done, total)

        policies = {f"{index}": run.policy for index, run in enumerate(runs)}
        with orderly_stop(stopped.append):
            try:
                return judge(
                    policies,
                    self.logged.dataset,
                    on_progress=tell,
                    limits=self.settings.limits,
                    **self.config.to_dict(),
                )
            except Interrupted:
                for run in runs:
                    run.signal = stopped[0]
                    run.request_stop(f"signal {stopped[0]}")
                return "interrupted; it is made when the run is resumed"
            except UserError as problem:
                return str(problem)

    def _told(self, judgement: Judgement, policy: PolicyJudgement) -> State:
        assert isinstance(self.logged, LoggedEpisodes)
        where = "held out of training" if self.logged.held_out else "of the training data itself"
        return told_judgement(judgement, policy, where)


class SelfJudging(Callback):
    """Judges the policy once training is over and saved, and saves again what came out."""

    def __init__(self, bench: RunJudge, checkpoints: Checkpoints, progress: Progress) -> None:
        self.bench, self.checkpoints, self.progress = bench, checkpoints, progress
        self.judged_step = -1

    def on_train_start(self, run: Run) -> None:
        run.results = {**NOT_JUDGED, **run.results}

    def on_train_end(self, run: Run) -> None:
        if self.judged_step == run.global_step:
            return  # resumed where it ended
        show = partial(self.progress.show_stage, run)
        run.results |= NOT_JUDGED if run.interrupted else self.bench.numbers_of(run, show)
        if run.interrupted:
            return
        self.judged_step = run.global_step
        run.emit("on_eval_end", {name: run.results[name] for name in NOT_JUDGED}, False)
        self.checkpoints.save(run)

    def state_dict(self) -> State:
        return {"judged_step": self.judged_step}

    def load_state_dict(self, state: State) -> None:
        self.judged_step = int(state["judged_step"])


def told_judgement(judgement: Judgement, policy: PolicyJudgement, where: str) -> State:
    """What is kept of a judgement beside a run's other results; `where` its episodes come from."""
    episodes = judgement.data["episodes"]
    return {
        **told_costs(policy),
        "judge_value": policy.value,
        "judge_low": policy.low,
        "judge_high": policy.high,
        "judge_score": policy.score,
        "judge_behaviour": judgement.behaviour.value,
        "judge_difference": policy.difference.value,
        "judge_difference_low": policy.difference.low,
        "judge_difference_high": policy.difference.high,
        "judge_episodes": episodes,
        "judge_verdict": policy.verdict,
        "judge_note": f"{policy.sentence} Estimated from {episodes} episodes {where}, not measured.",
    }


def told_costs(policy: PolicyJudgement) -> State:
    """What it costs, and how that stands to the limits; nothing of logs without costs."""
    costs = {
        each.name: {
            **{name: number(getattr(each, name)) for name in ("value", "low", "high", "limit")},
            "per": each.per,
            "outcome": each.outcome,
        }
        for each in policy.costs
    }
    limited = {"judge_limits": policy.limits, "judge_excess": number(policy.excess)} if policy.limits else {}
    return {**({"judge_costs": costs} if costs else {}), **limited}


def not_judged(reason: str) -> State:
    return {**NOT_JUDGED, "judge_note": f"not judged: {reason}"}


def single(judgement: Judgement, index: int) -> Judgement:
    """The judgement of one policy out of several."""
    return replace(judgement, policies=judgement.policies[index : index + 1])
