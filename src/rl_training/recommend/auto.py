"""`auto`: train a portfolio on a part of a log, choose by the other part, export what is recommended.

What it has found lies in its folder: runs, fits of the judge, and the plan. Killed anywhere, the same call
goes on from there.
"""

from __future__ import annotations

import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from rl_training.config import ConfigModel, setting
from rl_training.config.limits import parse_limits
from rl_training.core.checkpoints import checkpoint_path
from rl_training.core.errors import ConfigError, DataError, RunFailed, UserError
from rl_training.core.files import parse_json, write_json_atomic
from rl_training.core.spaces import Box, Spaces
from rl_training.core.types import Facts, State
from rl_training.data.advice import advise
from rl_training.data.convert import read_location, source_location, target_location, write_location
from rl_training.data.fields import FIELDS
from rl_training.data.log import EpisodeLog
from rl_training.data.log_checks import hidden_mistakes
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prepare import fingerprint
from rl_training.data.read import GivenData, as_dataset
from rl_training.data.rows import as_array
from rl_training.data.splits import FEWEST_EPISODES, episode_values, split_episodes
from rl_training.data.tables.files import check_target, copy_folder
from rl_training.judging.candidates import DIAL, dial_curve
from rl_training.judging.fit import OnProgress
from rl_training.judging.log import FEWEST_STINTS
from rl_training.judging.verdict import DialCurve, Judgement, joined
from rl_training.policies.policy import Policy
from rl_training.recommend.choice import Choice, choose, confirmed, what_to_log
from rl_training.recommend.portfolio import (
    DIALS,
    LIMITS,
    TRAINING_SHARE,
    Common,
    Recipe,
    affordable,
    portfolio,
    seconds_of_stages,
    seconds_per_update,
    tasks_of,
)
from rl_training.report.auto_page import short_html, write_auto_page
from rl_training.runs import judge as run_judge
from rl_training.runs.export import export_policy, make_guard
from rl_training.runs.judge import told_judgement
from rl_training.runs.saved import SavedRun
from rl_training.runtime.offline_data import stated_spaces
from rl_training.sweeps.plan import SweepRun, Task
from rl_training.sweeps.workers import call_on_ray, run_local, run_on_ray, worker_count

BOUNDS = ("action_low", "action_high")
LOG, LIMIT = "log.hdf5", "limit"
PLAN, ANSWER = "plan.json", "auto.json"
RETRIES = 1
STOPPED = "stopped by signal {}; what was done is kept: the same command goes on"
SECOND_LOOK = 2
"""Times as many resamples as the first one takes: with few, luck decides how wide its interval is."""
JUDGED_TOGETHER = 4
"""Candidates that one processor of a cluster judges; all of them see the same resamples."""
MOST_HELD_OUT, HELD_OUT_STEP = 0.5, 0.03
FEWEST = 2 * FEWEST_EPISODES
"""Episodes: as many to learn from, as to choose by."""


class AutoConfig(ConfigModel):
    """How a policy is looked for."""

    minutes: float = setting(20.0, "minutes of processor time for training and judging, about", gt=0)
    gamma: float = setting(0.99, "discount of future rewards", gt=0, lt=1)
    seed: int = setting(0, "seed of everything", ge=0)
    held_out: float = setting(0.2, "share of the episodes that only the judge sees", gt=0, le=0.5)


Say = Callable[[str], None]


@dataclass(frozen=True)
class AutoResult:
    """What came out: the judgement of all candidates, the choice, and where everything lies."""

    folder: Path
    judgement: Judgement
    choice: Choice
    policy: Path | None
    failed: Mapping[str, str]
    commands: tuple[str, ...]
    seconds: float
    processor_seconds: float
    """of this machine, in this call: less where an earlier one had begun"""
    notes: tuple[str, ...] = ()
    """what the log itself says: whether the past matters, and what is suspicious about it"""
    second: Judgement | None = field(default=None, repr=False)
    policies: Mapping[str, Policy] = field(default_factory=dict, repr=False)
    """the candidates as they were judged, by name"""

    @property
    def recommended(self) -> bool:
        return self.policy is not None

    @property
    def page(self) -> Path:
        return self.folder / "auto.html"

    @property
    def sentence(self) -> str:
        return self.choice.sentence

    @property
    def next_steps(self) -> tuple[str, ...]:
        """What to log next, where no policy is recommended."""
        if self.recommended:
            return ()
        return what_to_log(self.judgement, fell_back=self.second is not None)

    def to_dict(self) -> State:
        return {
            "recommended": self.choice.name,
            "sentence": self.sentence,
            "reason": self.choice.reason,
            "policy": None if self.policy is None else self.policy.name,
            "judgement": self.judgement.to_dict(),
            "judged_again": None if self.second is None else self.second.to_dict(),
            "notes": list(self.notes),
            "next_steps": list(self.next_steps),
            "failed": dict(self.failed),
            "commands": list(self.commands),
            "seconds": self.seconds,
            "processor_seconds": self.processor_seconds,
        }

    def _repr_html_(self) -> str:
        return short_html(self)


def auto(
    data: GivenData,
    *,
    columns: Facts | None = None,
    fields: Facts | None = None,
    costs: Mapping[str, str] | None = None,
    limits: Mapping[str, float | str] | None = None,
    out: str | os.PathLike[str] = "auto",
    workers: int | None = None,
    ray: str | None = None,
    copy_to: str | None = None,
    say: Say = lambda sentence: None,
    on_progress: OnProgress = lambda name, done, updates: None,
    **settings: object,
) -> AutoResult:
    """From a log to one recommended, guarded, exported policy in the folder `out`, or to an honest no.

    `costs` say what must not happen too often, {"overheat": "T_tank > 80"}, and `limits` how often it may,
    {"overheat": 0.01} per step or {"overheat": "3 per episode"}: nothing else is recommended.

    `data` is a path, a data frame with `columns`, arrays by name or a dataset; `fields` are further dataset
    fields of a config, such as `action_low`. `settings` are those of `AutoConfig`: `minutes`, `gamma`,
    `seed`, `held_out`. `ray` is the address of a cluster that trainings and judgements are spread over.
    `copy_to` is an address such as s3://bucket/found, where everything is copied at the end. Stopped
    anywhere, the same call goes on.
    """
    began = Clock.read()
    config = AutoConfig.build(settings)
    if workers is not None and ray is not None:
        raise ConfigError(f"workers {workers} has no effect with ray, which places trainings: leave it out")
    if copy_to is not None:
        check_target(copy_to)
    folder = Path(out)
    asked = {name: each for name, each in (("costs", costs), ("limits", limits)) if each}
    fields = {**(fields or {}), **asked}
    whole, place, notes = settle_data(data, columns, fields, folder, say)
    spaces = bounds_of(whole, fields, say)
    search = Search(folder, config, whole, spaces, place, notes, say, on_progress, ray)
    updates = search.plan()
    tasks = search.tasks(updates)
    search.train(tasks, workers)
    found = search.finish(tasks, began)
    if copy_to is not None:
        say(f"Copying {folder} to {copy_to}.")
        copy_folder(folder, copy_to)
    return found


def settle_data(
    data: GivenData, columns: Facts | None, fields: Facts, folder: Path, say: Say
) -> tuple[TransitionDataset, State, tuple[str, ...]]:
    """The rows, the dataset fields by which a training finds them, and what an engineer should know of them.

    Rows in memory are written down. Where the past matters, policies are asked with as much of it as helps.
    """
    given = {name: fields[name] for name in fields if name not in BOUNDS}
    if isinstance(data, str | os.PathLike):
        place = source_location(os.fspath(data))
        told: State = {**given, **({"columns": dict(columns)} if columns else {})}
        log = read_location(place, fields=told)
        found: State = {"dataset_kind": "auto", "dataset_path": os.path.abspath(os.fspath(data)), **told}
    else:
        log = written_down(as_dataset(data, columns, given), folder)
        place = source_location(str(folder / LOG))
        found = {"dataset_kind": "auto", "dataset_path": str((folder / LOG).absolute())}
        found |= {name: given[name] for name in ("limits",) if given.get(name)}
    whole = TransitionDataset.from_log(log)
    beyond = whole.check_limits(parse_limits(given.get("limits", {})))
    refuse_what_cannot_be(whole)
    advice, notes = advise(log), [*beyond, *hidden_mistakes(log)]
    if advice is not None:
        notes = [*advice.sentences, *notes]
        if advice.history and log.info.signals is None and not given.get("history"):
            say(f"The past matters: policies are asked with {advice.history} rows of it (--history).")
            found["history"] = advice.history
            told = {**given, "columns": columns or {}, "history": advice.history}
            whole = TransitionDataset.from_log(read_location(place, fields=told))
    for note in notes:
        say(f"- {note}")
    bounds = {name: fields[name] for name in BOUNDS if name in fields}
    return whole, {**found, **bounds}, tuple(notes)


def refuse_what_cannot_be(whole: TransitionDataset) -> None:
    """Before anything is looked at or fitted."""
    source, rewards = whole.info.source, whole.rewards
    if not whole.info.rewards_known:
        raise DataError(
            f"{source}: the log has no rewards, and without them nothing is better than anything; "
            "name their column, or give a formula (--reward)"
        )
    episodes = int(whole.episode_ends("auto").sum())
    if episodes < FEWEST:
        raise DataError(
            f"{source}: the log has {episodes} episodes; {FEWEST} are the least, "
            f"{FEWEST_EPISODES} to learn from and {FEWEST_EPISODES} to choose by. Log more, or cut a "
            "continuous log into shifts or days (--episode-length)"
        )
    if float(rewards.max() - rewards.min()) == 0.0:
        raise DataError(
            f"{source}: every reward is {float(rewards[0]):g}, so that no policy is "
            "better than another; name another column, or give a formula (--reward)"
        )


def written_down(whole: TransitionDataset, folder: Path) -> EpisodeLog:
    """Rows in memory as a file that every training can read."""
    folder.mkdir(parents=True, exist_ok=True)
    arrays = {name: whole.store.whole(name).numpy() for name in whole.fields if FIELDS.get(name).file_names}
    terminated = as_array(whole.dones) != 0
    arrays["truncated"] = whole.episode_ends("auto") & ~terminated
    log = EpisodeLog.from_arrays({**arrays, "terminated": terminated}, info=whole.info)
    write_location(log, target_location(str(folder / LOG)))
    return log


def bounds_of(whole: TransitionDataset, fields: Facts, say: Say) -> Spaces:
    """The spaces of the log; bounds that nobody states are what the log has shown to be possible."""
    if whole.info.spaces is not None:
        return whole.info.spaces
    actions = whole.actions.reshape(len(whole), -1).double().numpy()
    choices = whole.info.choices or (None,) * actions.shape[1]
    bounds = {name: np.atleast_1d(fields[name]).tolist() for name in BOUNDS if fields.get(name) is not None}
    numbers = actions[:, [choice is None for choice in choices]]
    if len(bounds) < len(BOUNDS) and numbers.size:
        logged = (numbers.min(axis=0).tolist(), numbers.max(axis=0).tolist())
        bounds = {**dict(zip(BOUNDS, logged, strict=True)), **bounds}
        say("Bounds of the actions are not stated: the smallest and largest logged values are taken.")
    obs_dim = int(np.prod(whole.obs.shape[1:]))
    return stated_spaces(obs_dim, choices, bounds, masked=whole.info.masked)


@dataclass(frozen=True)
class Search:
    """One folder in which a policy is looked for."""

    folder: Path
    config: AutoConfig
    whole: TransitionDataset
    spaces: Spaces
    place: Facts
    notes: tuple[str, ...]
    say: Say
    on_progress: OnProgress
    ray: str | None = None

    @cached_property
    def held_out(self) -> float:
        """The share that only the judge sees: enough for it also of a short log, and of every operator."""
        needed, who = [FEWEST_EPISODES / self.episodes], episode_values(self.whole, "operators")
        codes, counts = np.unique([] if who is None else who, return_counts=True)
        needed += [FEWEST_STINTS / count for count in counts]
        share = max([self.config.held_out, *(each for each in needed if each <= MOST_HELD_OUT)])
        valued = [code for code, count in zip(codes, counts, strict=True) if count >= 2 * FEWEST_STINTS]
        # Whole days that are held out may hold less of somebody than that share.
        tried = np.arange(share, MOST_HELD_OUT + 1e-9, HELD_OUT_STEP).tolist() if valued else []
        return next((each for each in tried if self.holds_out(each, valued)), share)

    def holds_out(self, share: float, operators: Sequence[float]) -> bool:
        """Whether the judge would see enough episodes of each of these."""
        who = episode_values(split_episodes(self.whole, share, self.config.seed)[1], "operators")
        return who is not None and all((who == each).sum() >= FEWEST_STINTS for each in operators)

    @property
    def episodes(self) -> int:
        return int(self.whole.episode_ends("auto").sum())

    @property
    def common(self) -> Common:
        boxes = [each for each in self.spaces.parts if isinstance(each, Box)]
        bounds = {"action_low": [each.low for each in boxes], "action_high": [each.high for each in boxes]}
        given = {**self.place, **(bounds if boxes and self.whole.info.spaces is None else {})}
        config = self.config
        return Common(given, self.spaces, config.gamma, config.seed, self.held_out, config.minutes)

    @property
    def limits(self) -> Mapping[str, float | str]:
        """The most that each cost may be, as it was written."""
        return dict(self.place.get("limits", {}))

    @property
    def recipes(self) -> tuple[Recipe, ...]:
        return portfolio(self.spaces, self.config.minutes, self.whole, parse_limits(self.limits))

    # ---- the plan

    def plan(self) -> dict[str, int]:
        """Updates of each training: measured once, then kept, so that a stopped search goes on as planned."""
        facts = {
            "data": fingerprint([self.whole], sampled=True),
            "settings": self.config.to_dict(),
            **({"limits": self.limits} if self.limits else {}),
            "recipes": [each.name for each in self.recipes],
        }
        file = self.folder / PLAN
        stored: State = {}
        with suppress(OSError, ValueError):
            stored = parse_json(file.read_text(encoding="utf-8"))
        if stored and stored.get("facts") != facts:
            raise ConfigError(
                f"{self.folder} holds a search with other data or settings: name another folder (--out)"
            )
        if stored:
            self.say(f"Going on with the search in {self.folder}.")
            return {each.name: int(stored["updates"][each.name]) for each in self.recipes}
        measured = [each for each in self.recipes if each.updates is None]
        costs = [
            seconds_per_update(self.common.config(each, self.folder, 1_000), self.whole, self.spaces)
            for each in measured
        ]
        taken = [
            seconds_of_stages(each, self.common, self.folder, self.whole, self.spaces)
            for each in self.recipes
            if each.stages
        ]
        counts = affordable(costs, self.config.minutes, sum(taken))
        chosen = {each.name: count for each, count in zip(measured, counts, strict=True)}
        updates = {each.name: each.updates or chosen[each.name] for each in self.recipes}
        needed = sum(taken) + sum(cost * count for cost, count in zip(costs, counts, strict=True))
        self.say(
            f"{len(updates)} trainings, about {needed / 60:.1f} minutes of processor time; then the judge."
        )
        if needed > 1.1 * TRAINING_SHARE * self.config.minutes * 60.0:
            self.say(
                f"Less than that is not worth judging: it will be more than {self.config.minutes:g} in all."
            )
        write_json_atomic(file, {"facts": facts, "updates": updates})
        return updates

    def tasks(self, updates: Mapping[str, int]) -> list[Task]:
        runs = self.folder.absolute() / "runs"
        return tasks_of(
            [(each.name, self.common.config(each, runs, updates[each.name])) for each in self.recipes]
        )

    # ---- trainings

    def train(self, tasks: Sequence[Task], workers: int | None) -> None:
        """Bring every training to its end; one that fails is told of, the others count."""
        left = [task for task in tasks if not task.done]
        total = len(tasks)
        told: set[str] = set()

        def watch(running: set[str]) -> None:
            done = sum(task.done for task in tasks)
            self.on_progress("trainings", done, total)
            for name in sorted(running - told):
                told.add(name)
                self.say(f"Training {name}.")

        if self.ray is not None:
            stopped = run_on_ray(left, address=self.ray, retries=RETRIES, watch=watch)
        else:
            logs = self.folder / "logs"
            count = worker_count(workers)
            stopped = run_local(left, workers=count, retries=RETRIES, log_dir=logs, watch=watch)
        if stopped is not None:
            raise RunFailed(STOPPED.format(stopped))
        if not any(task.done for task in tasks):
            problems = {run.name: run.status.problem for task in tasks for run in task.runs}
            listed = "; ".join(f"{name}: {problem}" for name, problem in problems.items())
            raise RunFailed(f"no training came to its end: {listed}")

    # ---- the choice

    def finish(self, tasks: Sequence[Task], began: Clock) -> AutoResult:
        """Judge, choose, judge the chosen one again, export, write the page."""
        runs = [run for task in tasks for run in task.runs]
        done = [run for run in runs if run.status.done]
        failed = {run.name: str(run.status.problem) for run in runs if not run.status.done}
        policies = dict(candidates(done))
        log = split_episodes(self.whole, self.held_out, self.config.seed)[1]
        count = int(log.episode_ends("auto").sum())
        self.say(f"Judging {len(policies)} candidates by {count} episodes that none of them has seen.")
        judgement = self.judge(policies, log, self.config.seed, "fits", importance=False)
        judgement = replace(judgement, dials=tuple(dial_curves(judgement, done)))
        shares = self.spaces.as_shares
        widths = [high - low for low, high in zip(shares.action_low, shares.action_high, strict=True)]
        choice, second = choose(judgement, widths), None
        if choice.name is not None:
            self.say(f"Judging {choice.name} again on fresh resamples.")
            again = {"members": SECOND_LOOK * len(judgement.named(choice.name).members)}
            second = self.judge(
                {choice.name: policies[choice.name]}, log, self.config.seed + 1, "fits_again", **again
            )
            choice = confirmed(choice, second)
        judgement = replace(judgement, dials=tuple(left_at(each, choice) for each in judgement.dials))
        file = None
        if choice.name is not None and second is not None:
            file = self.export(choice.name, done, policies[choice.name], second, judgement.dials)
        ended = Clock.read()
        result = AutoResult(
            self.folder,
            judgement,
            choice,
            file,
            failed,
            self.commands(done, file),
            ended.wall - began.wall,
            ended.processor - began.processor,
            self.notes,
            second,
            policies,
        )
        write_auto_page(result)
        write_json_atomic(self.folder / ANSWER, result.to_dict())
        return result

    def judge(
        self, policies: Mapping[str, Policy], log: TransitionDataset, seed: int, fits: str, **more: object
    ) -> Judgement:
        settings: State = {"gamma": self.config.gamma, "seed": seed, "limits": self.limits, **more}
        kept = self.folder / fits
        if self.ray is None:
            return run_judge.judge(
                dict(policies), log, on_progress=self.on_progress, checkpoints=kept, **settings
            )
        names = list(policies)
        parts = [names[start : start + JUDGED_TOGETHER] for start in range(0, len(names), JUDGED_TOGETHER)]
        calls = [
            ({name: policies[name] for name in part}, log, str(kept / str(index)), settings)
            for index, part in enumerate(parts)
        ]

        def watch(left: Sequence[int]) -> None:
            self.on_progress("judgements", len(parts) - len(left), len(parts))

        found = call_on_ray(judge_part, calls, address=self.ray, retries=RETRIES, watch=watch)
        if found.stopped is not None:
            raise RunFailed(STOPPED.format(found.stopped))
        for index, problem in found.failed.items():
            raise RunFailed(f"{', '.join(parts[index])} could not be judged: {problem}")
        return joined([found.answers[index] for index in range(len(parts))])

    def export(
        self,
        name: str,
        runs: Sequence[SweepRun],
        policy: Policy,
        judged: Judgement,
        curves: Sequence[DialCurve],
    ) -> Path:
        """The chosen policy as a file, with a guard of all logged rows; ONNX where its library is there.

        Its card tells the judgement that had no part in choosing it, and value against dial.
        """
        run = SavedRun(run_of(name, runs).run_dir)
        guard = make_guard(self.whole, run, policy.spaces, {"fallback": "rate"})
        policy.guard = guard.to(policy.device)
        suffix = ".onnx" if all(map(find_spec, ("onnx", "onnxruntime"))) else ".safetensors"
        told = told_judgement(judged, judged.named(name), "held out of training")
        state = {**run.state, "results": {**run.state["results"], **told}}
        curve = next((each for each in curves if each.name == run_of(name, runs).name), None)
        out = self.folder / f"policy{suffix}"
        return export_policy(policy, state, out, run_dir=run.run_dir, curve=curve)

    def commands(self, runs: Sequence[SweepRun], file: Path | None) -> tuple[str, ...]:
        """What repeats each step by hand."""
        dirs = [str(run.run_dir) for run in runs]
        told = [f"train --config {shlex.quote(str(Path(each) / 'config.yaml'))}" for each in dirs]
        limits = "".join(f" --limit {shlex.quote(f'{name}: {most}')}" for name, most in self.limits.items())
        told.append(f"judge {shlex.join(dirs)} --gamma {self.config.gamma:g}{limits} --out judge.html")
        if file is not None:
            told.append(f"serve {shlex.quote(str(file))}")
        return tuple(f"rl-training {each}" for each in told)


@dataclass(frozen=True)
class Clock:
    """Seconds of the wall, and of processors: this process and the workers that have ended."""

    wall: float
    processor: float

    @classmethod
    def read(cls) -> Clock:
        return cls(time.monotonic(), sum(os.times()[:4]))


def judge_part(
    policies: Mapping[str, Policy], log: TransitionDataset, checkpoints: str, settings: State
) -> Judgement:
    """Body of a call on a cluster: some of the candidates, on the same resamples as all others."""
    try:
        return run_judge.judge(dict(policies), log, checkpoints=checkpoints, **settings)
    except UserError as problem:
        raise RuntimeError(str(problem)) from None  # plain text survives the way back


def candidates(runs: Sequence[SweepRun]) -> Iterator[tuple[str, Policy]]:
    """The policies of every training: the last one under its name, earlier ones with their step.

    A policy with a dial is several, one at each position, and so is one whose limit is chosen while it runs;
    before their training has ended they are none. What counts is judged, and shipped, as it acts without.
    """
    for run in runs:
        policy = SavedRun(run.run_dir).policy
        if any(each.name == DIAL for each in policy.inputs):
            yield from ((at_dial(run.name, at), policy.with_inputs(dial=at)) for at in DIALS)
            continue
        if (stated := next((each.default for each in policy.inputs if each.name == LIMIT), None)) is not None:
            steady = policy.without_counting()
            yield from (
                (f"{run.name} limit {share * stated:g}", steady.with_inputs(limit=share * stated))
                for share in LIMITS
            )
            continue
        yield run.name, policy
        early, total = run.config.checkpoint_interval, run.config.total_timesteps
        if early is not None and early < total and (file := checkpoint_path(run.run_dir, early)).exists():
            yield f"{run.name} at {early}", SavedRun(file).policy


def at_dial(name: str, at: float) -> str:
    return f"{name} dial {at:g}"


def dial_curves(judgement: Judgement, runs: Sequence[SweepRun]) -> Iterator[DialCurve]:
    """Value against dial for every training whose policy has one."""
    judged = {each.name for each in judgement.policies}
    for run in runs:
        positions = {at: name for at in DIALS if (name := at_dial(run.name, at)) in judged}
        if positions:
            yield dial_curve(judgement, run.name, positions)


def left_at(curve: DialCurve, choice: Choice) -> DialCurve:
    """The curve of what is recommended says where its dial is left, and no other says anything of that."""
    places = [each.dial for each in curve.positions if each.name == choice.name]
    return replace(curve, recommended=next(iter(places), None))


def run_of(name: str, runs: Sequence[SweepRun]) -> SweepRun:
    """The training that a candidate comes from."""
    return next(run for run in runs if name == run.name or name.startswith(f"{run.name} "))
