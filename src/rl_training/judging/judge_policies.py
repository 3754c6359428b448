"""How good is a policy where nobody can try it out? One function that asks everything and says it plainly."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, NamedTuple, Unpack

import numpy as np

from rl_training.algorithms.dynamics import Dynamics
from rl_training.core.errors import ConfigError, DataError, UserError, WrongTypeError
from rl_training.core.machine import one_thread
from rl_training.core.signals import Signals
from rl_training.core.spaces import Box, Part, Spaces
from rl_training.data.info import DataInfo
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.rows import as_array
from rl_training.judging import checks
from rl_training.judging.checks import Coverage, Points, TrainedCritic
from rl_training.judging.costs import CostValues, LoggedCosts, fit_costs, longest_lengths
from rl_training.judging.evidence import (
    action_check,
    along_time,
    compare_actions,
    on_the_map,
    uncovered_states,
)
from rl_training.judging.explanation import CURVES, Explanation, explain
from rl_training.judging.fit import FitCache, KeptFit, OnProgress, made_beside, say_nothing
from rl_training.judging.fqe import FittedValues, fit_values
from rl_training.judging.hidden import Unused, is_something_hidden, unmarked_ends
from rl_training.judging.importance import ImportanceSampling, prepare_importance_sampling, unit_spaces
from rl_training.judging.log import Float64Array, JudgedLog, NameOf, Operator, operators_of
from rl_training.judging.model import Paid, Rollouts, errors_of_the_model, fit_dynamics, roll_out, what_if
from rl_training.judging.policies import (
    FileWithPast,
    JudgedPolicy,
    PolicyActions,
    Predicts,
    actions_in_the_log,
    asked_by_log,
    check_fits,
    check_predicts,
    counting_check,
    draws_check,
)
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import (
    BehaviourJudgement,
    Check,
    CostJudgement,
    Evidence,
    Interval,
    Judgement,
    OperatorJudgement,
    PolicyJudgement,
    advice_for,
    against_the_best,
    combined,
    interval,
    sentence_of,
    shifted,
    verdict_of,
    weighted,
    widened,
)
from rl_training.policies.policy import Policy

if TYPE_CHECKING:
    from rl_training.judging.keywords import JudgeKeywords

FAILED, COUNTS = "the policy failed a check", "it acts by what an episode has cost so far"
"""Why nothing is said of a policy's limits."""

TRUSTED, LOST = 0.4, 0.8
"""Shares outside the log along rollouts: up to the first a score is what both methods say, from the second on
the lower of the two."""

Policies = Mapping[str, Predicts] | Sequence[Predicts] | Predicts


@one_thread()
def judge(
    policies: Policies,
    data: TransitionDataset,
    *,
    on_progress: OnProgress = say_nothing,
    critics: Mapping[str, TrainedCritic] | None = None,
    checkpoints: str | Path | None = None,
    workers: int = 1,
    unused: Unused = tuple,
    limits: Mapping[str, object] | None = None,
    config: JudgeConfig | None = None,
    **settings: Unpack[JudgeKeywords],
) -> Judgement:
    """Judge policies by a log. `policies`: one, a list, or a mapping of names; anything with `predict`.

    `settings` are those of `JudgeConfig`, such as `gamma` and `seed`; they change `config`, where one is
    given. All policies are judged on the same
    resamples and rows, so that their order does not depend on luck of their own. `critics` are what policies
    were trained with (`trained_critic` of a run), by the policies' names: their optimism is shown. With a
    `checkpoints` folder the fits are kept in it while they are made, and the same call goes on from there.
    With several `workers`, fits that do not need each other are made in processes of their own.
    `unused` reads the columns of the log that no observation holds: asked for where something is hidden.
    Every cost of the log is valued as well; `limits` say how much of it may be: {"overheat": 0.01} per step,
    or {"overheat": "3 per episode"}.
    """
    start = time.monotonic()
    if workers < 1:
        raise ConfigError(f"workers must be >= 1, got {workers}")
    if config is None or settings:
        config = JudgeConfig.build(settings) if config is None else config.replace(**settings)
    if not isinstance(data, TransitionDataset):
        raise WrongTypeError(
            f"data must be a TransitionDataset, got {type(data).__name__}; rl_training.judge takes paths, "
            "arrays and data frames too"
        )
    if not data.info.rewards_known:
        raise DataError(f"{data.info.source}: the log has no rewards, and without them nothing can be judged")
    parts = parts_of(policies, data)
    log = JudgedLog.from_dataset(data, config.gamma, by_time=config.discount_by_time, parts=parts)
    enough = checks.enough_episodes(log, config)  # known before anything is fitted
    if enough.outcome == "refused":
        raise DataError(f"{data.info.source}: {enough.reason}")
    candidates = named_policies(policies, log, data.info, parts)
    costs = LoggedCosts.of(data, limits or {})
    for policy in candidates:
        check_fits(policy, log, data.info.source, data.info.spaces)
    actions = actions_in_the_log(candidates, log, config)
    operators, seldom = operators_of(data, log)
    fits = make_fits(log, actions, operators, costs, config, on_progress, checkpoints, workers)
    fitted, dynamics = fits.values, fits.dynamics
    stated = [parts, data.info.spaces, *(each.spaces for each in candidates)]
    spaces = unit_spaces(log, next((each for each in stated if each is not None), None))
    name_of = data.info.name_of if parts is None else names_of_shares(data, parts)
    hidden = {"unmarked_ends": unmarked_ends(log, name_of)}
    if dynamics is not None:
        hidden |= is_something_hidden(log, dynamics, name_of, unused)
    policy_judge = PolicyJudge(
        log=log,
        config=config,
        fitted=fitted,
        operators=operators,
        seldom=seldom,
        spaces=spaces,
        name_of=name_of,
        covered=Coverage.of(log, config.neighbours, config.seed, () if parts is None else parts.levels),
        dynamics=dynamics,
        importance=prepare_importance_sampling(log, data, spaces, config, on_progress, parts)
        if config.importance
        else None,
        critics=critics or {},
        shared={
            "episodes": enough,
            "falsification": checks.falsification(log, fitted, config),
            **hidden,
        },
        signals=data.info.signals,
        costs=fits.costs,
    )
    judged = []
    for index, (policy, own) in enumerate(zip(candidates, actions, strict=True)):
        judged.append(policy_judge.judge(index, policy, own))
        on_progress("policies", index + 1, len(candidates))
    behaviour = policy_judge.behaviour()
    advice, seconds = advice_for(judged, behaviour), time.monotonic() - start
    return Judgement(
        tuple(judged),
        behaviour,
        data_facts(log, data),
        config.to_dict(),
        advice,
        seconds,
        operators=policy_judge.judged_operators(len(judged)),
        logged_costs=costs.told,
        model=() if dynamics is None else errors_of_the_model(log, dynamics, name_of, data.info.signals),
    )


class Fits(NamedTuple):
    """What all policies of a judgement have in common."""

    values: FittedValues
    dynamics: Dynamics | None
    costs: list[CostValues]


def make_fits(
    log: JudgedLog,
    actions: Sequence[PolicyActions],
    operators: Sequence[Operator],
    costs: LoggedCosts,
    config: JudgeConfig,
    on_progress: OnProgress,
    checkpoints: str | Path | None,
    workers: int,
) -> Fits:
    """With several workers, all but the values are fitted by processes, and taken as they left them."""
    plain = replace(log)  # without what was computed of it
    beside: list[KeptFit] = []
    if config.model_rollouts:
        beside.append(partial(fit_dynamics, plain, config, say_nothing))
    if costs.names:
        given = (costs, plain, actions, config, say_nothing)
        beside.append(partial(fit_costs, *given, operators=operators))
    with ExitStack() as stack:
        if checkpoints is None and workers > 1:
            checkpoints = stack.enter_context(TemporaryDirectory(prefix="judgement-"))
        folder = None if checkpoints is None else Path(checkpoints)
        cache = None if folder is None else fit_cache(folder, config, log, actions, operators, costs)
        wait = stack.enter_context(made_beside(beside, workers - 1, cache))
        values = fit_values(log, actions, config, on_progress, cache, operators)
        wait()
        dynamics = fit_dynamics(log, config, on_progress, cache) if config.model_rollouts else None
        return Fits(values, dynamics, fit_costs(costs, log, actions, config, on_progress, cache, operators))


def parts_of(policies: Policies, data: TransitionDataset) -> Spaces | None:
    """What actions are, where there are choices: as the data says, or the first policy that knows.

    Bounds of numbers beside choices are those stated, else the range of the log.
    """
    given = policies.values() if isinstance(policies, Mapping) else policies
    several = list(given) if isinstance(given, Iterable) else [given]
    known = [getattr(policy_inside(each), "spaces", None) for each in several]
    stated = [each for each in (data.info.spaces, *known) if isinstance(each, Spaces) and each.choices]
    if data.info.choices:
        stated = [each for each in stated if each.choices == data.info.choices]
    if stated or not data.info.choices:
        return stated[0] if stated else None
    rows = as_array(data.actions)
    boxes = [(float(low), float(high)) for low, high in zip(rows.min(axis=0), rows.max(axis=0), strict=True)]
    parts: list[Part] = [
        Box(low, high if high > low else low + 1.0) if choice is None else choice
        for choice, (low, high) in zip(data.info.choices, boxes, strict=True)
    ]
    return Spaces.of(data.obs.shape[1], parts)


def names_of_shares(data: TransitionDataset, parts: Spaces) -> NameOf:
    """Names for the numbers of `as_shares`."""

    def name(kind: str, index: int) -> str:
        if kind != "action":
            return data.info.name_of(kind, index)
        return parts.share_name(index, lambda column: data.info.name_of("action", column))

    return name


def named_policies(
    policies: Policies, log: JudgedLog, info: DataInfo, parts: Spaces | None = None
) -> list[JudgedPolicy]:
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
        check_predicts(name, policy)
    width = log.actions.shape[1]
    return [
        JudgedPolicy(name, asked_by_log(name, policy_inside(policy), info), width, parts)
        for name, policy in named.items()
    ]


def policy_inside(policy: Predicts) -> Predicts:
    """What a trained `IQL` acts with: unlike the object around it, it can say how its actions are drawn.

    Only of objects that say so: what else has a `policy` may change its actions, and is judged as it acts.
    """
    if not getattr(type(policy), "acts_by_its_policy", False):
        return policy
    inside = getattr(policy, "policy", None)
    return inside if isinstance(inside, Policy) else policy


def fit_cache(
    folder: Path,
    config: JudgeConfig,
    log: JudgedLog,
    actions: Sequence[PolicyActions],
    operators: Sequence[Operator],
    costs: LoggedCosts,
) -> FitCache:
    columns = (log.obs, log.actions, log.next_obs, log.rewards, log.dones, log.ends)
    times = () if log.discounts is None else (log.discounts,)
    per_episode = [each in costs.limits and costs.limits[each].per == "episode" for each in costs.names]
    further = (costs.rows, np.array(per_episode)) if costs.names else ()
    own = (values for each in actions for values in (each.here, each.there))
    return FitCache.of(folder, config, [*columns, *times, *further, *own, *(each.rows for each in operators)])


def data_facts(log: JudgedLog, data: TransitionDataset) -> dict[str, Any]:
    by_time = {} if log.discounts is None else {"step_discount": log.step_discount}
    return {
        **by_time,
        "source": data.info.source,
        "rows": len(log),
        "episodes": log.episodes,
        "terminations": int(log.dones.sum()),
        "mean_length": float(log.lengths.mean()),
        "mean_reward": float(log.rewards.mean(dtype=np.float64)),
        "spread_of_returns": log.reward_scale.spread,
    }


@dataclass(frozen=True)
class PolicyJudge:
    """The verdict on one policy after another, by what the judgements of one log have in common."""

    log: JudgedLog
    config: JudgeConfig
    fitted: FittedValues
    operators: Sequence[Operator]
    seldom: Mapping[str, int]
    """operators who took over too seldom to be valued"""
    spaces: Spaces
    name_of: NameOf
    covered: Coverage
    dynamics: Dynamics | None
    importance: ImportanceSampling | None
    critics: Mapping[str, TrainedCritic]
    shared: Mapping[str, Check]
    signals: Signals | None = None
    """what the log's observations are made of, where that is more than columns"""
    costs: Sequence[CostValues] = ()

    def judge(self, index: int, policy: JudgedPolicy, actions: PolicyActions) -> PolicyJudgement:
        found = {**self.shared, "convergence": self.convergence(index)}
        if self.config.action_draws:
            found["draws"] = draws_check(policy, self.config)
        if policy.counts:
            found["counting"] = counting_check()
        distances, found["coverage"] = self.coverage(actions)
        fitted, model = self.value_of(index), None
        worlds: tuple[float, ...] = ()
        paid: tuple[Paid, ...] = ()
        estimates = {"fqe": fitted}
        if self.dynamics is not None:
            model, rolled, model_checks = self.second_opinion(self.dynamics, policy, fitted)
            worlds, paid = tuple(rolled.values.tolist()), rolled.costs
            estimates["model"] = model
            found |= model_checks
        if self.importance is not None:
            weighted, found["sample_size"] = self.importance.estimates(
                policy, actions.here[:, 0], self.fitted, index
            )
            estimates |= weighted
        evidence = replace(self.evidence(index, actions, distances), explanation=self.explanation(policy))
        found["actions"] = action_check(evidence.actions)
        if (optimism := self.critic_optimism(index, policy)) is not None:
            found["critic"], points = optimism
            evidence = replace(evidence, critic=points)
        own, difference = self.headline(index, model)
        verdict = verdict_of(difference, found)
        wanted = "refused" if verdict == "refused" else "warned"
        sentence = sentence_of(verdict, difference, difference.value / self.log.horizon, found)
        to_operators = self.to_operators(index, difference)
        if to_operators and verdict != "refused":
            sentence += f" {against_the_best(to_operators, found, self.seldom)}"
        doubt = FAILED if verdict == "refused" else COUNTS if policy.counts else ""
        costs = self.costs_of(index, paid, doubt)
        sentence = " ".join([sentence, *(each.sentence for each in costs if each.sentence)])
        return PolicyJudgement(
            name=policy.name,
            value=own.value,
            low=_bound(own.low),
            high=_bound(own.high),
            difference=difference,
            verdict=verdict,
            sentence=sentence,
            reasons=tuple(check.reason for check in found.values() if check.outcome == wanted),
            estimates=estimates,
            checks=found,
            evidence=evidence,
            score=self.score_of(fitted, model, found),
            members=tuple(self.fitted.values[index].tolist()),
            worlds=worlds,
            operators=to_operators,
            costs=costs,
        )

    def costs_of(self, index: int, paid: Sequence[Paid] = (), doubt: str = "") -> tuple[CostJudgement, ...]:
        """Every cost of a policy, also in the model where it was asked; `doubt` forbids to rely on it."""
        by_model = [
            (each.per_episode if cost.per == "episode" else each.per_step)
            for each, cost in zip(paid, self.costs, strict=bool(paid))
        ]
        return tuple(
            cost.judge(index, self.config, worlds=by_model[place] if paid else None, doubt=doubt)
            for place, cost in enumerate(self.costs)
        )

    def behaviour(self) -> BehaviourJudgement:
        last = len(self.fitted.values) - 1
        own = self.value_of(last)
        return BehaviourJudgement(
            value=own.value,
            low=_bound(own.low),
            high=_bound(own.high),
            mean_return=self.log.mean_return,
            checks={**self.shared, "convergence": self.convergence(last)},
            calibration=checks.calibration(self.log, self.fitted),
            costs=self.costs_of(last),
        )

    def convergence(self, index: int) -> Check:
        return checks.convergence(self.log, self.fitted, index, self.config)

    def coverage(self, actions: PolicyActions) -> tuple[Float64Array, Check]:
        """How far from anything logged the policy acts in logged states, `[rows, draws]`."""
        rows, draws = self.covered.rows, actions.here.shape[1]
        obs, own = np.repeat(self.log.obs[rows], draws, axis=0), actions.here[rows]
        distances = self.covered.distances(obs, own.reshape(len(obs), -1)).reshape(-1, draws)
        share = self.covered.share_outside(distances)
        # What a policy reaches decides, where a model says what that is.
        decides = self.dynamics is None
        return distances, checks.coverage(share, self.config.coverage_limit, reached=False, decides=decides)

    def second_opinion(
        self, dynamics: Dynamics, policy: JudgedPolicy, fitted: Interval
    ) -> tuple[Interval, Rollouts, dict[str, Check]]:
        """The value in the model, rollouts in each of its worlds; whether the policy leads out of the log."""
        rolled = roll_out(
            dynamics,
            self.log,
            policy,
            self.config,
            self.signals,
            [cost.rate for cost in self.costs if cost.rate is not None],
            longest_lengths(self.log) if any(cost.per == "episode" for cost in self.costs) else None,
        )
        # Worlds of single networks lie further apart than what the log leaves open: their mean counts.
        model = interval(rolled.values, self.config.confidence, of_mean=True)
        if self.log.discounts is not None:
            model = replace(model, note="steps in the model are discounted by the mean over logged steps")
        share = self.covered.share_outside(self.covered.distances(rolled.obs, rolled.actions))
        limit, spread = self.config.rollout_coverage_limit, self.log.reward_scale.spread
        return (
            model,
            rolled,
            {
                "rollout_coverage": checks.coverage(share, limit, reached=True, decides=True),
                "second_opinion": checks.second_opinion(
                    fitted, model, self.behaviour_value, spread, self.config
                ),
            },
        )

    def to_operators(self, index: int, difference: Interval) -> dict[str, Interval]:
        """What the policy earns more than each operator, from where this took over.

        As much wider as a second method makes the `difference` to the behaviour.
        """
        fitted, found = self.fitted, {}
        plain = self.fitted_difference(index)
        for number, (operator, values) in enumerate(zip(self.operators, fitted.taken_over, strict=True)):
            place = number - len(self.operators) - 1
            error = max(fitted.level_error(each, self.log.horizon) for each in (index, place))
            own = interval(values[index] - values[place], self.config.confidence, error)
            found[operator.name] = widened(own, plain, difference)
        return found

    def judged_operators(self, policies: int) -> tuple[OperatorJudgement, ...]:
        """What each is worth from where it took over."""
        found = []
        for index, (operator, values) in enumerate(
            zip(self.operators, self.fitted.taken_over, strict=True), policies
        ):
            error = self.fitted.level_error(index, self.log.horizon)
            own = interval(values[index], self.config.confidence, error)
            bounds, stints = (_bound(own.low), _bound(own.high)), len(operator.starts)
            costs = tuple(
                each.judge(index, self.config, members=each.taken_over(index - policies, index))
                for each in self.costs
            )
            found.append(OperatorJudgement(operator.name, own.value, *bounds, stints, costs))
        return tuple(found)

    def critic_optimism(self, index: int, policy: JudgedPolicy) -> tuple[Check, Points] | None:
        """What the critic that it was trained with promises, where that is known and discounts alike."""
        critic = self.critics.get(policy.name)
        if critic is None or not critic.discounts_like(self.log):
            return None
        trained = critic.values(policy.asked(self.log.obs), self.log.actions)
        return checks.critic_optimism(self.log, self.fitted, index, trained, self.config)

    def explanation(self, policy: JudgedPolicy) -> Explanation | None:
        """What the policy does, and what the model believes would have followed in one episode; a file that
        keeps its past itself cannot be asked about rows out of their order.
        """
        if isinstance(policy.predictor, FileWithPast):
            return None
        log, signals = self.log, self.signals
        found = explain(log, policy.actions, self.spaces, self.name_of)
        if self.dynamics is None:
            return found
        # Lags and other signals of columns follow from these, and are not shown.
        width = log.obs.shape[1]
        plain = (signals.program.plain_places if signals else ()) or range(width)
        places = {self.name_of("observation", place): place for place in plain}
        order = [each.column for each in found.importance if each.column in places][:CURVES]
        shown = {name: places[name] for name in order}
        return replace(found, what_if=what_if(self.dynamics, log, policy.actions, shown, signals))

    def evidence(self, index: int, actions: PolicyActions, distances: Float64Array) -> Evidence:
        """What a page draws of a policy."""
        log, covered, fitted = self.log, self.covered, self.fitted
        far = distances[:, 0] > covered.limit
        inside, outside = on_the_map(log, covered, actions.here[:, 0], far)
        logged, _ = on_the_map(log, covered, log.actions, np.zeros_like(far))
        along_training = (
            (done, interval(values[index], self.config.confidence)) for done, values in fitted.history[1:]
        )
        return Evidence(
            actions=tuple(compare_actions(log, actions.here, self.spaces, self.name_of, covered.levels)),
            along_time=along_time(log, fitted.own[index], fitted.own[-1]),
            map_logged=logged,
            map_inside=inside,
            map_outside=outside,
            uncovered=tuple(uncovered_states(log, covered, actions.here, distances, self.name_of)),
            training=tuple(
                (float(done), each.value, each.low, each.high)
                for done, each in along_training
                if each.low is not None and each.high is not None
            ),
        )

    @property
    def behaviour_value(self) -> float:
        return float(self.fitted.values[-1].mean())

    def value_of(self, index: int) -> Interval:
        error = self.fitted.level_error(index, self.log.horizon)
        return interval(self.fitted.values[index], self.config.confidence, error)

    def fitted_difference(self, index: int) -> Interval:
        members = self.fitted.values[index] - self.fitted.values[-1]
        error = self.fitted.level_error(index, self.log.horizon)
        return interval(members, self.config.confidence, error)

    def headline(self, index: int, model: Interval | None) -> tuple[Interval, Interval]:
        """The value that is told, and its difference to the behaviour's; both span what the model says.

        Differences are taken member by member: policy and behaviour share their resamples, which cancels
        what they share.
        """
        own, difference = self.value_of(index), self.fitted_difference(index)
        if model is None:
            return own, difference
        together = self.config.headline == "both"
        apart = shifted(model, -self.behaviour_value)
        return combined(own, model, together=together), combined(difference, apart, together=together)

    def score_of(self, fitted: Interval, model: Interval | None, found: Mapping[str, Check]) -> float:
        """What both methods say together; the further a policy leads out of the log, the lower of the two.

        Policies that leave the log are overrated by what learns from it, and seldom by both methods alike:
        the unknown is taken to be as bad as either says it is. Without a model of where a policy leads, the
        lower end of its interval.
        """
        if model is None:
            return self.log.worst_value if fitted.low is None else fitted.low
        outside = found["rollout_coverage"].numbers["share_outside"]
        doubt = float(np.clip((outside - TRUSTED) / (LOST - TRUSTED), 0.0, 1.0))
        score = (1.0 - doubt) * weighted(fitted, model) + doubt * min(fitted.value, model.value)
        return score if np.isfinite(score) else self.log.worst_value


def _bound(value: float | None) -> float:
    return float("nan") if value is None else value
