"""How good is a policy where nobody can try it out? One function that asks everything and says it plainly."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.errors import DataError, UserError
from rl_training.core.spaces import Spaces
from rl_training.core.threads import one_thread
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.judging import checks
from rl_training.judging.advice import advice_for
from rl_training.judging.court import Court
from rl_training.judging.coverage import Coverage
from rl_training.judging.critics import TrainedCritic
from rl_training.judging.density import unit_spaces
from rl_training.judging.drawing import actions_in_the_log
from rl_training.judging.fitting import Keeping, Told, judgement_key
from rl_training.judging.judgement import Judgement
from rl_training.judging.log import JudgedLog
from rl_training.judging.rollouts import fit_dynamics
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.subjects import Predicts, Subject, check_fits
from rl_training.judging.values import PolicyActions, fit_values
from rl_training.judging.weighing import prepare_weighing
from rl_training.policies.policy import Policy

Policies = Mapping[str, Predicts] | Sequence[Predicts] | Predicts


@one_thread()
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
    log = JudgedLog.from_dataset(data, config.gamma, by_time=config.discount_by_time)
    subjects = named_subjects(policies, log)
    for subject in subjects:
        check_fits(subject, log, data.info.source, data.info.spaces)
    actions = actions_in_the_log(subjects, log, config)
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


def keeping_of(
    folder: Path, config: JudgeConfig, log: JudgedLog, actions: Sequence[PolicyActions]
) -> Keeping:
    columns = (log.obs, log.actions, log.next_obs, log.rewards, log.dones, log.ends)
    times = () if log.discounts is None else (log.discounts,)
    own = (values for each in actions for values in (each.here, each.there))
    return Keeping(folder, judgement_key(config, [*columns, *times, *own]))


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
    width = log.actions.shape[1]
    return [Subject(name, policy_inside(policy), width) for name, policy in named.items()]


def policy_inside(policy: Predicts) -> Predicts:
    """What a trained `IQL` acts with: unlike the object around it, it can say how its actions are drawn.

    Only of objects that say so: what else has a `policy` may change its actions, and is judged as it acts.
    """
    if not getattr(type(policy), "acts_by_its_policy", False):
        return policy
    inside = getattr(policy, "policy", None)
    return inside if isinstance(inside, Policy) else policy


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


def _spaces(subject: Subject) -> Spaces | None:
    spaces = getattr(subject.policy, "spaces", None)
    return spaces if isinstance(spaces, Spaces) else None
