"""Policies judged by a log: however they are given, and by the run itself when it has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from rl_training.config.data import (
    ASKED_FIELDS,
    TABLE_KINDS,
    OfflineDataFields,
    OfflineFields,
)
from rl_training.core.errors import UserError
from rl_training.core.files import write_json_atomic
from rl_training.core.types import Facts, State, number
from rl_training.data.convert import source_location
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.read import ArrowTable, GivenData, as_dataset, unused_columns
from rl_training.data.splits import LoggedEpisodes
from rl_training.judging.candidates import at_positions, checked_dials, dial_curve, has_dial, name_at
from rl_training.judging.checks import TrainedCritic
from rl_training.judging.fit import OnProgress
from rl_training.judging.fqe import updates_needed
from rl_training.judging.judge_policies import judge as judge_policies
from rl_training.judging.log import JudgedLog
from rl_training.judging.policies import Predicts, check_predicts
from rl_training.judging.settings import JudgeConfig
from rl_training.judging.verdict import Judgement, PolicyJudgement
from rl_training.policies.files import is_policy_file, load_policy
from rl_training.runs.directory import JUDGEMENT_FILE, Checkpoints
from rl_training.runs.saved import SavedRun
from rl_training.runs.tracking import Progress
from rl_training.runtime.callbacks import Callback, Run
from rl_training.runtime.loop import orderly_stop
from rl_training.runtime.offline_data import data_sources

if TYPE_CHECKING:
    from rl_training.judging.keywords import JudgeKeywords


GivenPolicy = Predicts | SavedRun | str | os.PathLike[str]
"""Anything with `predict(obs)`, a run, or the path of a policy file, a checkpoint or a run directory"""


def judge(
    policies: GivenPolicy | Mapping[str, GivenPolicy] | Sequence[GivenPolicy],
    data: GivenData | None = None,
    *,
    columns: Facts | None = None,
    fields: Facts | None = None,
    costs: Mapping[str, str] | None = None,
    limits: Mapping[str, float | str] | None = None,
    on_progress: OnProgress = lambda name, done, updates: None,
    critics: Mapping[str, TrainedCritic] | None = None,
    checkpoints: str | os.PathLike[str] | None = None,
    workers: int = 1,
    dial: float | Sequence[float] | None = None,
    **settings: Unpack[JudgeKeywords],
) -> Judgement:
    """Say how good policies are by a log alone: one, a list, or a mapping of names.

    A policy is anything with `predict(obs)`, a run from `open_run`, or the path of a policy file, a
    checkpoint or a run directory. `data` is a dataset, arrays by name, a data frame or a path, and may be
    left out for runs, which are then judged by their own. A table is read as the first run that names
    columns read it, but for the `columns` and further dataset `fields` given here. `settings` are those of
    `JudgeConfig`, such as `gamma` and `seed`. Runs are judged with the discount that they were trained with,
    by time where they were, unless another is given. With a
    `checkpoints` folder the fits are kept in it while they are made, and the same call goes on from there.
    With several `workers`, fits that do not need each other are made in processes of their own, which takes
    less time and changes no number; a script then needs `if __name__ == "__main__":` around the call.
    Policies with a dial are judged at each position of `dial`, as policies of their own.
    `costs` say what must not happen too often, {"overheat": "T_tank > 80"}, and `limits` how often it may,
    {"overheat": 0.01} per step or {"overheat": "3 per episode"}; those of the runs are the default of both.
    """
    fields = dict(fields or {})
    limits = fields.pop("limits", None) if limits is None else limits
    costs = fields.pop("costs", None) if costs is None else costs
    if data is None and (columns or fields):
        raise UserError("data is needed (--data) with what says how it is read: runs read their own as ever")
    opened = {name: _opened(name, each) for name, each in named_policies(policies).items()}
    runs = {name: each for name, each in opened.items() if isinstance(each, SavedRun)}
    if any(run.discount_by_time for run in runs.values()):
        settings.setdefault("discount_by_time", True)
    if "gamma" not in settings and (gamma := own_gamma(runs)) is not None:
        settings["gamma"] = gamma
    config = JudgeConfig.build(settings)  # nothing wrong is read for
    if data is None:
        log, (place, reading) = own_log(runs).with_costs(costs or {}), own_place(next(iter(runs.values())))
    else:
        told = fields if costs is None else {**fields, "costs": costs}
        place, reading = data, how_to_read(data, columns, told, list(runs.values()))
        log = as_dataset(data, *reading, name="data")
    own = {name: critic for name, run in runs.items() if (critic := run.critic) is not None}
    acting = {name: each.policy if isinstance(each, SavedRun) else each for name, each in opened.items()}
    dials = () if dial is None else checked_dials([dial] if isinstance(dial, int | float) else dial)
    turned = [name for name, each in acting.items() if dials and has_dial(each)]
    if dials and not turned:
        raise UserError(
            f"dial needs a policy with a dial, such as one of lion: {', '.join(acting)} have none"
        )
    positions = {
        at: each
        for name, policy in acting.items()
        for at, each in (at_positions(name, policy, dials) if dials else {name: policy}).items()
    }
    judgement = judge_policies(
        positions,
        log,
        on_progress=on_progress,
        critics={**own, **(critics or {})},
        checkpoints=None if checkpoints is None else Path(checkpoints),
        workers=workers,
        unused=lambda: () if place is None else unused_columns(place, *reading, log),
        limits=own_limits(runs) if limits is None else limits,
        config=config,
    )
    curves = tuple(dial_curve(judgement, name, {at: name_at(name, at) for at in dials}) for name in turned)
    seen = [warning for run in runs.values() if data is None and (warning := run.seen_in_training)]
    return replace(judgement, dials=curves, advice=(*seen, *judgement.advice))


def named_policies(
    policies: GivenPolicy | Mapping[str, GivenPolicy] | Sequence[GivenPolicy],
) -> dict[str, GivenPolicy]:
    """Every policy with a name of its own: that of its path, or a number."""
    if isinstance(policies, Mapping):
        return dict(policies)
    several = (
        list(policies) if isinstance(policies, Sequence) and not isinstance(policies, str) else [policies]
    )
    paths = [path for each in several if (path := _path_of(each)) is not None]
    short = dict(zip(paths, short_names(paths), strict=True))
    names = [
        short[path] if (path := _path_of(each)) is not None else f"policy {index + 1}"
        for index, each in enumerate(several)
    ]
    if len(names) == 1 and not paths:
        names = ["policy"]
    return dict(zip(names, several, strict=True))


def short_names(paths: Sequence[Path]) -> list[str]:
    """A short name for every path: its own, with as much of the directory as keeps it apart."""
    for parts in range(1, max((len(path.parts) for path in paths), default=0) + 1):
        names = ["/".join(path.parts[-parts:]) for path in paths]
        if len(set(names)) == len(set(paths)):
            return names
    return [str(path) for path in paths]


def own_log(runs: Mapping[str, SavedRun]) -> TransitionDataset:
    """The log that all of these runs were trained on."""
    if not runs:
        raise UserError("data is needed (--data): no policy here says by which log it can be judged")
    found = {run.data_name: run for run in runs.values()}
    if None in found:
        raise UserError(f"data is needed (--data): {found[None].path} has no log to go back to")
    if len(found) > 1:
        told = ", ".join(f"{run.path} {name}" for name, run in found.items())
        raise UserError(f"data is needed (--data): the runs were trained on different logs ({told})")
    apart = [run.held_out_data for run in runs.values() if run.learned_in_a_model]
    if any(apart):  # a policy that pleases a model is not judged by the rows that the model was fitted to
        return next(each for each in apart if each is not None)
    return next(iter(found.values())).data


def own_limits(runs: Mapping[str, SavedRun]) -> Mapping[str, float | str]:
    """The limits that these runs were trained under."""
    found = {run.path: limits for run in runs.values() if (limits := run.table_fields.get("limits"))}
    if len({json.dumps(each, sort_keys=True) for each in found.values()}) > 1:
        told = ", ".join(f"{path} {json.dumps(each)}" for path, each in found.items())
        raise UserError(f"limits are needed (--limit): the runs were trained under different ones ({told})")
    return next(iter(found.values()), {})


def own_gamma(runs: Mapping[str, SavedRun]) -> float | None:
    """The discount that these runs were trained with; none where no algorithm of them has one."""
    found = {run.gamma: run for run in runs.values() if run.gamma is not None}
    if len(found) > 1:
        told = ", ".join(f"{run.path} {gamma:g}" for gamma, run in found.items())
        raise UserError(f"gamma is needed (--gamma): the runs were trained with different discounts ({told})")
    return next(iter(found), None)


Reading = tuple[Facts, Facts]
"""Which columns are what, and further dataset fields."""


def how_to_read(data: GivenData, columns: Facts | None, fields: Facts, runs: Sequence[SavedRun]) -> Reading:
    """A table is read as the first run that names columns read it, but for what is given."""
    own: Facts = {}
    if not columns and _is_table(data):
        mapped = (run.table_fields for run in runs)
        own = next((each for each in mapped if any(each.get("columns", {}).values())), {})
        columns = own.get("columns")
    others = {name: own[name] for name in own if name != "columns"}
    if not own:
        asked = ({key: run.table_fields.get(key) for key in ASKED_FIELDS} for run in runs)
        others = next(({k: v for k, v in each.items() if v} for each in asked if any(each.values())), {})
    return columns or {}, {**others, **fields}


def own_place(run: SavedRun) -> tuple[GivenData | None, Reading]:
    """Where a run's data lies and how it was read, where that is one place."""
    settings, fields = run.settings, run.table_fields
    found = data_sources(settings) if isinstance(settings, OfflineDataFields) else []
    columns = fields.pop("columns", {})
    return (found[0][1].dataset_path if len(found) == 1 else None), (columns, fields)


def _is_table(data: GivenData) -> bool:
    if isinstance(data, str | os.PathLike):
        return source_location(os.fspath(data)).kind in TABLE_KINDS
    return isinstance(data, ArrowTable)


def _path_of(given: object) -> Path | None:
    if isinstance(given, SavedRun):
        return given.path
    return Path(given) if isinstance(given, str | os.PathLike) else None


def _opened(name: str, given: GivenPolicy) -> Predicts | SavedRun:
    if isinstance(given, SavedRun):
        return given
    if isinstance(given, str | os.PathLike):
        return load_policy(given) if is_policy_file(Path(given)) else SavedRun(given)
    check_predicts(name, given)
    return given


# ---- what a run without an environment says of its policy in the end: a judgement by logged episodes


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
                assert isinstance(self.logged, LoggedEpisodes)
                where = "held out of training" if self.logged.held_out else "of the training data itself"
                told = told_judgement(judgement, judgement.policies[index], where)
                single = replace(judgement, policies=judgement.policies[index : index + 1])
                write_json_atomic(run.run_dir / JUDGEMENT_FILE, single.to_dict())
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

    @cached_property
    def config(self) -> JudgeConfig:
        updates = self.settings.judge_updates
        return JudgeConfig.build(
            {
                **LIGHTER,
                "gamma": self.settings.judge_gamma,
                "discount_by_time": isinstance(self.logged, LoggedEpisodes) and self.logged.by_time,
                "updates": updates,
                "model_updates": min(MODEL_UPDATES, updates or MODEL_UPDATES),
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
                return judge_policies(
                    policies,
                    self.logged.dataset,
                    on_progress=tell,
                    limits=self.settings.limits,
                    config=self.config,
                )
            except Interrupted:
                for run in runs:
                    run.signal = stopped[0]
                    run.request_stop(f"signal {stopped[0]}")
                return "interrupted; it is made when the run is resumed"
            except UserError as problem:
                return str(problem)


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
