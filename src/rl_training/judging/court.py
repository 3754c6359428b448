"""The verdict on one policy after another, by what the judgements of one log have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from rl_training.core.spaces import Spaces
from rl_training.judging import checks
from rl_training.judging.coverage import Coverage
from rl_training.judging.critics import TrainedCritic
from rl_training.judging.drawing import draws_check
from rl_training.judging.dynamics import Dynamics
from rl_training.judging.evidence import action_check, evidence_of
from rl_training.judging.judgement import (
    BehaviourJudgement,
    Check,
    Evidence,
    Interval,
    PolicyJudgement,
    Verdict,
)
from rl_training.judging.log import Float64Array, JudgedLog
from rl_training.judging.rollouts import roll_out
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.subjects import Subject
from rl_training.judging.values import FittedValues, PolicyActions
from rl_training.judging.verdicts import combined, interval, sentence_of, shifted, verdict_of
from rl_training.judging.weighing import Weighing


@dataclass(frozen=True)
class Court:
    """Everything that the judgements of one log have in common."""

    log: JudgedLog
    config: JudgeConfig
    fitted: FittedValues
    spaces: Spaces
    name_of: Callable[[str, int], str]
    covered: Coverage
    dynamics: Dynamics | None
    weighing: Weighing | None
    critics: Mapping[str, TrainedCritic]
    shared: dict[str, Check]

    def judge(self, index: int, subject: Subject, actions: PolicyActions) -> PolicyJudgement:
        found = {
            **self.shared,
            "convergence": checks.convergence(self.log, self.fitted, index, self.config),
        }
        if self.config.action_draws:
            found["draws"] = draws_check(subject, self.config)
        distances = self.ask_the_log(actions, found)
        fitted = self.value_of(index)
        estimates = {"fqe": fitted}
        model = self.ask_the_model(subject, fitted, found)
        if model is not None:
            estimates["model"] = model
        if self.weighing is not None:
            weighed, found["sample_size"] = self.weighing.estimates(
                subject, actions.here[:, 0], self.fitted, index
            )
            estimates |= weighed
        evidence = self.evidence(index, subject, actions, distances, found)
        own, difference = self.headline(index, model)
        verdict = verdict_of(difference, found)
        wanted = "refused" if verdict == "refused" else "warned"
        return PolicyJudgement(
            name=subject.name,
            value=own.value,
            low=_bound(own.low),
            high=_bound(own.high),
            difference=difference,
            verdict=verdict,
            sentence=sentence_of(verdict, difference, difference.value / self.log.horizon, found),
            reasons=tuple(check.reason for check in found.values() if check.outcome == wanted),
            estimates=estimates,
            checks=found,
            evidence=evidence,
            score=self.score_of(fitted, model, verdict, found),
            members=tuple(self.fitted.values[index].tolist()),
        )

    def headline(self, index: int, model: Interval | None) -> tuple[Interval, Interval]:
        """The value that is told, and its difference to the behaviour's; both span what the model says."""
        own, difference = self.value_of(index), self.difference_of(index)
        if model is None:
            return own, difference
        mean = self.config.headline == "both"
        apart = shifted(model, -self.behaviour_value)
        return combined(own, model, mean=mean), combined(difference, apart, mean=mean)

    def score_of(
        self, fitted: Interval, model: Interval | None, verdict: Verdict, found: Mapping[str, Check]
    ) -> float:
        """The mean of both methods; a refused policy earns the least wherever it leads out of the log.

        Policies that leave the log are overrated by every method that learns from it, so the unknown is taken
        to be as bad as anything known (Kidambi et al. 2020, arXiv:2005.05951). Without a model of where a
        policy leads, the lower end of its interval.
        """
        if model is None:
            return _bound(fitted.low)
        outside = found["rollout_coverage"].numbers["share_outside"] if verdict == "refused" else 0.0
        return (1.0 - outside) * (fitted.value + model.value) / 2.0 + outside * self.log.worst_value

    def ask_the_log(self, actions: PolicyActions, found: dict[str, Check]) -> Float64Array:
        """How far from anything logged the policy acts in logged states, `[rows, draws]`."""
        rows, draws = self.covered.rows, actions.here.shape[1]
        obs, own = np.repeat(self.log.obs[rows], draws, axis=0), actions.here[rows]
        distances = self.covered.distances(obs, own.reshape(len(obs), -1)).reshape(-1, draws)
        share = self.covered.share_outside(distances)
        found["coverage"] = checks.coverage(share, self.config.coverage_limit, along_rollouts=False)
        return distances

    def evidence(
        self,
        index: int,
        subject: Subject,
        actions: PolicyActions,
        distances: Float64Array,
        found: dict[str, Check],
    ) -> Evidence:
        """What a page draws, and the checks that only warn."""
        evidence = evidence_of(
            self.log,
            actions.here,
            self.covered,
            distances,
            self.fitted,
            index,
            self.spaces,
            self.config.confidence,
            self.name_of,
        )
        found["actions"] = action_check(evidence.actions)
        critic = self.critics.get(subject.name)
        if critic is None or not critic.discounts_like(self.log):
            return evidence
        trained = critic.values(self.log.obs, self.log.actions)
        found["critic"], points = checks.critic_optimism(self.log, self.fitted, index, trained, self.config)
        return replace(evidence, critic=points)

    def ask_the_model(self, subject: Subject, fitted: Interval, found: dict[str, Check]) -> Interval | None:
        """The second opinion, and whether the policy leads where the log has never been."""
        if self.dynamics is None:
            return None
        rolled = roll_out(self.dynamics, self.log, subject, self.config)
        # Worlds of single networks lie further apart than what the log leaves open: their mean counts.
        model = interval(rolled.values, self.config.confidence, of_mean=True)
        if self.log.discounts is not None:
            model = replace(model, note="steps in the model are discounted by the mean over logged steps")
        share = self.covered.share_outside(self.covered.distances(rolled.obs, rolled.actions))
        found["rollout_coverage"] = checks.coverage(
            share, self.config.rollout_coverage_limit, along_rollouts=True
        )
        found["second_opinion"] = checks.second_opinion(
            fitted, model, self.behaviour_value, self.log.reward_scale.spread, self.config
        )
        return model

    @property
    def behaviour_value(self) -> float:
        return float(self.fitted.values[-1].mean())

    def value_of(self, index: int) -> Interval:
        error = self.fitted.level_error(index, self.log.horizon)
        return interval(self.fitted.values[index], self.config.confidence, error)

    def difference_of(self, index: int) -> Interval:
        """Member by member: policy and behaviour share their resamples, which cancels what they share."""
        members = self.fitted.values[index] - self.fitted.values[-1]
        error = self.fitted.level_error(index, self.log.horizon)
        return interval(members, self.config.confidence, error)

    def behaviour(self) -> BehaviourJudgement:
        own = self.value_of(len(self.fitted.values) - 1)
        own_convergence = checks.convergence(self.log, self.fitted, len(self.fitted.values) - 1, self.config)
        return BehaviourJudgement(
            value=own.value,
            low=_bound(own.low),
            high=_bound(own.high),
            mean_return=self.log.mean_return,
            checks={**self.shared, "convergence": own_convergence},
            calibration=checks.calibration(self.log, self.fitted),
        )


def _bound(value: float | None) -> float:
    return float("nan") if value is None else value
