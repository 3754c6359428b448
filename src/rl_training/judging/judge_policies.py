"""How good is a policy where nobody can try it out? One function that asks everything and says it plainly."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import DataError, UserError
from rl_training.core.spaces import Spaces
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.judging import checks
from rl_training.judging.advice import advice_for
from rl_training.judging.coverage import Coverage
from rl_training.judging.critics import TrainedCritic
from rl_training.judging.density import unit_spaces
from rl_training.judging.dynamics import Dynamics
from rl_training.judging.evidence import action_check, evidence_of
from rl_training.judging.fitting import Keeping, Told, judgement_key
from rl_training.judging.judgement import BehaviourJudgement, Check, Interval, Judgement, PolicyJudgement
from rl_training.judging.log import JudgedLog
from rl_training.judging.rollouts import fit_dynamics, roll_out
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.subjects import Predicts, Subject, check_fits
from rl_training.judging.values import FittedValues, PolicyActions, fit_values
from rl_training.judging.verdicts import combined, interval, sentence_of, shifted, verdict_of
from rl_training.judging.weighing import Weighing, prepare_weighing

Policies = Mapping[str, Predicts] | Sequence[Predicts] | Predicts


def judge(
    policies: Policies,
    data: TransitionDataset,
    *,
    on_progress: Told = lambda name, done, updates: None,
    critics: Mapping[str, TrainedCritic] | None = None,
    checkpoints: str | Path | None = None,
    **settings: Any,
) -> Judgement:
    """Judge policies by a log. `policies`: one, a list, or a mapping of names; anything with `predict`.

    `settings` are those of `JudgeConfig`, such as `gamma` and `seed`. All policies are judged on the same
    resamples and rows, so that their order does not depend on luck of their own. `critics` are what policies
    were trained with (`trained_critic` of a run), by the policies' names: their optimism is shown. With a
    `checkpoints` folder the fits are kept in it while they are made, and the same call goes on from there.
    """
    start = time.monotonic()
    config = JudgeConfig.build(settings)
    if not data.info.rewards_known:
        raise DataError(f"{data.info.source}: the log has no rewards, and without them nothing can be judged")
    log = JudgedLog.from_dataset(data, config.gamma)
    subjects = named_subjects(policies, log)
    for subject in subjects:
        check_fits(subject, log, data.info.source, data.info.spaces)
    actions = [PolicyActions(each.actions(log.obs), each.actions(log.next_obs)) for each in subjects]
    keeping = None if checkpoints is None else keeping_of(Path(checkpoints), config, log, actions)
    fitted = fit_values(log, actions, config, on_progress, keeping)
    spaces = data.info.spaces or next((s for s in map(_spaces, subjects) if s is not None), None)
    court = Court(
        log=log,
        config=config,
        fitted=fitted,
        spaces=unit_spaces(log, spaces),
        name_of=data.info.name_of,
        covered=Coverage.of(log, config.neighbours, config.seed),
        dynamics=fit_dynamics(log, config, on_progress, keeping) if config.model_rollouts else None,
        weighing=prepare_weighing(log, data, spaces, config, on_progress) if config.importance else None,
        critics=critics or {},
        shared={
            "episodes": checks.enough_episodes(log, config),
            "falsification": checks.falsification(log, fitted, config),
        },
    )
    judged = []
    for index, (subject, own) in enumerate(zip(subjects, actions, strict=True)):
        judged.append(court.judge(index, subject, own))
        on_progress("policies", index + 1, len(subjects))
    behaviour = court.behaviour()
    facts = data_facts(log, data)
    advice = advice_for(judged, behaviour)
    seconds = time.monotonic() - start
    return Judgement(tuple(judged), behaviour, facts, config.to_dict(), advice, seconds)


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
        fitted, difference = self.value_of(index), self.difference_of(index)
        rows = self.covered.rows
        distances = self.covered.distances(self.log.obs[rows], actions.here[rows])
        share = self.covered.share_outside(distances)
        found = {
            **self.shared,
            "convergence": checks.convergence(self.log, self.fitted, index, self.config),
            "coverage": checks.coverage(share, self.config.coverage_limit, along_rollouts=False),
        }
        estimates = {"fqe": fitted}
        model = self.ask_the_model(subject, fitted, found)
        if model is not None:
            estimates["model"] = model
        if self.weighing is not None:
            weighed, found["sample_size"] = self.weighing.estimates(subject, actions.here, self.fitted, index)
            estimates |= weighed
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
        if critic is not None and critic.gamma == self.log.gamma:
            trained = critic.values(self.log.obs, self.log.actions)
            found["critic"], points = checks.critic_optimism(
                self.log, self.fitted, index, trained, self.config
            )
            evidence = replace(evidence, critic=points)
        own = fitted
        if model is not None:
            mean = self.config.headline == "both"
            own = combined(fitted, model, mean=mean)
            difference = combined(difference, shifted(model, -self.behaviour_value), mean=mean)
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
            members=tuple(self.fitted.values[index].tolist()),
        )

    def ask_the_model(self, subject: Subject, fitted: Interval, found: dict[str, Check]) -> Interval | None:
        """The second opinion, and whether the policy leads where the log has never been."""
        if self.dynamics is None:
            return None
        rolled = roll_out(self.dynamics, self.log, subject, self.config)
        # Worlds of single networks lie further apart than what the log leaves open: their mean counts.
        model = interval(rolled.values, self.config.confidence, of_mean=True)
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


def keeping_of(
    folder: Path, config: JudgeConfig, log: JudgedLog, actions: Sequence[PolicyActions]
) -> Keeping:
    columns = (log.obs, log.actions, log.next_obs, log.rewards, log.dones, log.ends)
    return Keeping(folder, judgement_key(config, [*columns, *(each.there for each in actions)]))


def named_subjects(policies: Policies, log: JudgedLog) -> list[Subject]:
    """Every policy with a name of its own."""
    if isinstance(policies, Mapping):
        named = dict(policies)
    else:
        several = list(policies) if isinstance(policies, Sequence) else [policies]
        named = {
            f"policy {index + 1}" if len(several) > 1 else "policy": p for index, p in enumerate(several)
        }
    if not named:
        raise UserError("policies must hold at least one policy")
    for name, policy in named.items():
        if isinstance(policy, str | Path) or not callable(getattr(policy, "predict", None)):
            raise UserError(
                f"policies must have predict(obs), {name} is {type(policy).__name__}; open a file or a run "
                "with rl_training.load_policy, or a checkpoint with the class that trained it"
            )
    return [Subject(name, policy, log.actions.shape[1]) for name, policy in named.items()]


def data_facts(log: JudgedLog, data: TransitionDataset) -> dict[str, Any]:
    return {
        "source": data.info.source,
        "rows": len(log),
        "episodes": log.episodes,
        "terminations": int(log.dones.sum()),
        "mean_length": float(log.lengths.mean()),
        "mean_reward": float(log.rewards.mean(dtype=np.float64)),
        "spread_of_returns": log.reward_scale.spread,
    }


def _spaces(subject: Subject) -> Spaces | None:
    spaces = getattr(subject.policy, "spaces", None)
    return spaces if isinstance(spaces, Spaces) else None


def _bound(value: float | None) -> float:
    return float("nan") if value is None else value
