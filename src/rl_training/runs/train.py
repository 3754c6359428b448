"""Training: from a config to a finished run directory, the one way for every algorithm."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Protocol, TypedDict, Unpack

import torch

from rl_training.algorithms.dynamics import ModelLearner
from rl_training.algorithms.learner import Learner
from rl_training.algorithms.recipe import Recipe, get_recipe
from rl_training.algorithms.stack import stack_learners
from rl_training.config.data import OfflineFields
from rl_training.config.run import ControlFields, OnlineFields, TrainConfig, config_to_yaml
from rl_training.core.errors import (
    ConfigError,
    DataError,
    EnvironmentProblem,
    RunFailed,
    memory_for,
    shown,
)
from rl_training.core.files import write_text_atomic
from rl_training.core.machine import choose_device, keep_freed_memory
from rl_training.core.products import check_library, computes_bf16, processor
from rl_training.core.schema import restoring
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.core.types import Facts, State
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.models.networks import NETWORKS
from rl_training.policies.export.trace import export_problem
from rl_training.policies.inputs import SignalMemory
from rl_training.runs.directory import (
    Checkpoints,
    RunLock,
    create_run_dir,
    run_name,
    summarize_run,
    write_summary,
)
from rl_training.runs.judge import RunJudge, SelfJudging
from rl_training.runs.model_errors import ModelErrors
from rl_training.runs.plots import plot_learning_curve
from rl_training.runs.tracking import (
    MetricsLog,
    MetricsLogger,
    Progress,
    Sink,
    online_numbers,
    open_trackers,
    read_metrics,
)
from rl_training.runtime.callbacks import (
    Callback,
    EarlyStopping,
    Evaluation,
    Evaluator,
    LearningRateSchedule,
    Run,
    RunNotes,
    TrainResult,
)
from rl_training.runtime.envs import EnvMaker, GivenEnv, Wrapper, env_maker, load_wrappers
from rl_training.runtime.loop import Phase, Trainer, apply_compile, orderly_stop
from rl_training.runtime.progress import ProgressDisplay
from rl_training.runtime.sources import OfflineSource, OnlineSource, RunSource

MOST_ROWS_LOOKED_AT = 1_000_000
"""Evenly spaced: as many as units can be taken from."""


class RunOptions(TypedDict, total=False):
    """How a run is started, beside its config."""

    run_suffix: str | None
    checkpoint_state: State | None
    callbacks: Sequence[Callback] | None
    evaluators: Sequence[Evaluator] | None
    trackers: Sequence[Sink] | None
    dataset: TransitionDataset | None
    env: GivenEnv | EnvMaker | None
    wrappers: Sequence[Wrapper] | None
    claim: RunLock | None
    """of the run directory to go on in"""
    allow_changed_data: bool
    live: bool
    quiet: bool


@dataclass(frozen=True)
class Plan:
    """What is settled before the first network is built."""

    recipe: Recipe
    settings: ControlFields
    configs: Sequence[TrainConfig]
    env: EnvMaker | None
    options: RunOptions

    @property
    def saved(self) -> State | None:
        return self.options.get("checkpoint_state")

    @property
    def judges_itself(self) -> bool:
        """Whether the log judges the policy in the end; a run that goes on elsewhere is tried out there."""
        settings, config = self.settings, self.configs[0]
        if not isinstance(settings, OfflineFields) or config.online_timesteps or self.options.get("live"):
            return False
        return self.env is None if settings.judge_at_end == "auto" else settings.judge_at_end


def update_budget(settings: ControlFields, rows: int | None) -> int | None:
    """The smaller of `max_updates` and `max_epochs` passes over the data."""
    limits = [settings.max_updates]
    if settings.max_epochs is not None and rows is not None:
        limits.append(settings.max_epochs * math.ceil(rows / settings.batch_size))
    given = [limit for limit in limits if limit is not None]
    return min(given) if given else None


def check_parts(options: RunOptions) -> None:
    """Objects of the wrong kind are refused here, in words, and not where they are first used."""
    for index, callback in enumerate(options.get("callbacks") or ()):
        if not isinstance(callback, Callback):
            raise ConfigError(
                f"callbacks[{index}] must be a Callback (subclass rl_training.Callback and override a hook), "
                f"got {callback!r}"
            )
    for index, tracker in enumerate(options.get("trackers") or ()):
        if not isinstance(tracker, Sink):
            raise ConfigError(
                f"trackers[{index}] must have write(step, metrics, kind) and close(), got {tracker!r}"
            )
    for name, given in (("evaluators", options.get("evaluators")), ("wrappers", options.get("wrappers"))):
        for index, part in enumerate(given or ()):
            if not callable(part):
                raise ConfigError(f"{name}[{index}] must be a function, got {part!r}")
    dataset = options.get("dataset")
    if dataset is not None and not isinstance(dataset, TransitionDataset):
        raise ConfigError(f"dataset must be a TransitionDataset, got {type(dataset).__name__}")


def check_network(learner: Learner, *, stacked: bool) -> None:
    """What a network of somebody else cannot do is said before it is trained, not after."""
    network = learner.model.actor.net.plan.network
    if NETWORKS.package_of(network) is None:
        return
    if stacked and not stacks(learner):
        raise ConfigError(
            f"network {network!r} cannot be stacked, its numbers mix seeds: train the seeds one by one, or "
            "build its layers with self.layer"
        )
    problem = export_problem(learner.policy)
    if problem is not None:
        warnings.warn(f"{problem}; the policy will act from its checkpoints only", stacklevel=2)


def stacks(learner: Learner) -> bool:
    """Whether two copies of a learner's actor, stacked, act as each does alone."""
    actor = learner.model.actor
    obs = torch.linspace(-1.0, 1.0, 5 * actor.obs_dim, device=learner.device).reshape(5, actor.obs_dim)
    pair = stack_learners([learner, learner]).model.actor
    with torch.no_grad():
        alone = actor.mode(obs)
        try:
            together = pair.mode(torch.stack([obs, obs]))
        except RuntimeError:
            return False
    return together.shape == (2, *alone.shape) and torch.allclose(together[1], alone, atol=1e-5)


def execute(trainer: Trainer[Run], runs: Sequence[Run]) -> list[TrainResult]:
    """Train, close in order whatever happens, and write down the results."""
    started = time.time()
    keep_freed_memory()

    def stop(number: int) -> None:
        for run in runs:
            run.signal = number
            run.request_stop(f"signal {number}")

    try:
        with orderly_stop(stop):
            train_or_save(trainer)
        for run in trainer.runs:
            run.finish()
    finally:
        close_all(trainer, runs)
    results = [write_result(run, started) for run in runs if run.failure is None]
    failures = [f"seed {run.config.seed}: {run.failure}" for run in runs if run.failure is not None]
    if failures:
        raise RunFailed("; ".join(failures))
    return results


def close_all(trainer: Trainer[Run], runs: Sequence[Run]) -> None:
    """Environments, logs and trackers."""
    trainer.close()
    for run in runs:
        for callback in run.callbacks:
            callback.close(run)


def train_or_save(trainer: Trainer[Run]) -> None:
    """An environment that raises ends the run with everything up to that step saved."""
    try:
        with memory_for("an update", "choose a smaller algo_kwargs.batch_size or smaller networks"):
            trainer.train()
    except EnvironmentProblem as problem:
        paths = []
        for run in trainer.runs:
            saver = next(callback for callback in run.callbacks if isinstance(callback, Checkpoints))
            paths.append(str(saver.save(run)))
        step = trainer.counters.global_step
        raise RunFailed(f"step {step}: {problem}; saved {', '.join(paths)}") from problem


def write_result(run: Run, started: float) -> TrainResult:
    """The files that describe a finished run, and its result."""
    assert run.outcome is not None
    metrics = {**run.outcome, "wall_time_seconds": time.time() - started}
    if run.config.online_timesteps:
        metrics |= online_numbers(read_metrics(run.run_dir), run.config.total_timesteps)
    described = summarize_run(
        run.config.to_dict(),
        metrics,
        stop_reason=metrics["stop_reason"],
        started_at=started,
        finished_at=time.time(),
    )
    checkpoint = None if run.checkpoint_path is None else run.checkpoint_path.name
    notes: State = {"checkpoint": checkpoint, "dataset": dict(run.notes.dataset)}
    notes |= {"products": run.trainer.learner.products, "processor": run.notes.processor}
    if run.notes.parent is not None:
        notes["parent"] = dict(run.notes.parent)
    write_summary(run.run_dir, {**described, **notes})
    plot_learning_curve(run.run_dir)
    return TrainResult(run.run_dir, run.checkpoint_path, metrics)


def combine(results: Sequence[TrainResult]) -> TrainResult:
    """One result for several seeds; a single one is returned as it is."""
    first = results[0]
    if len(results) == 1:
        return first
    returns = [result.metrics["eval_return_mean"] for result in results]
    metrics = dict(first.metrics)
    if None not in returns:
        metrics |= {"eval_return_mean": fmean(returns), "eval_return_std": pstdev(returns)}
    values = [value for result in results if (value := result.metrics.get("judge_value")) is not None]
    if len(values) == len(results):
        metrics |= {"judge_value": fmean(values), "judge_value_std": pstdev(values)}
    return TrainResult(first.run_dir, first.checkpoint_path, metrics, tuple(results))


def standard_callbacks(
    plan: Plan, config: TrainConfig, run_dir: Path, notes: RunNotes, bench: RunJudge | None, *, quiet: bool
) -> list[Callback]:
    """Every cross-cutting concern of a run, in the order in which it sees a step."""
    settings = plan.settings
    resumed_at = None if plan.saved is None else plan.saved["counters"]["global_step"]
    trackers = open_trackers(config.trackers, run_dir, config.to_dict())
    trackers += list(plan.options.get("trackers") or ())
    logger = MetricsLogger(run_dir, resume_from_step=resumed_at, trackers=trackers)
    chosen: list[Callback] = [MetricsLog(logger, config.log_interval), Evaluation(settings.eval_interval)]
    if settings.learning_rate_schedule != "constant" or settings.warmup_steps:
        chosen.insert(0, LearningRateSchedule(notes.schedule_steps))
    if settings.early_stopping is not None:
        chosen.append(EarlyStopping(settings.early_stopping))
    checkpoints = Checkpoints(
        config.checkpoint_interval, keep=settings.keep_checkpoints, save_best=settings.save_best
    )
    total = config.total_timesteps + config.online_timesteps
    progress = Progress(ProgressDisplay(quiet=quiet), total)
    judging = [] if bench is None else [SelfJudging(bench, checkpoints, progress)]
    return [*chosen, checkpoints, *judging, progress]


PhasesOf = Callable[[RunSource, Learner, State | None], list[Phase]]


def train(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train from the beginning, or on from `checkpoint_state`; in `run_dir`, or in a new directory."""
    return combine(execute(*assemble(make_plan(config, options))))


def assemble(plan: Plan, phases_of: PhasesOf | None = None) -> tuple[Trainer[Run], list[Run]]:
    """The loop and the run of every seed, at their beginning or where a checkpoint was written.

    `phases_of` makes the phases where they are not those of the source.
    """
    with memory_for("the data", "choose less of it, or algo_kwargs.dataset_in_memory: false"):
        source = make_source(plan)
    device = choose_device(plan.configs[0].device)
    with memory_for("the networks", "choose smaller algo_kwargs.hidden_sizes, fewer critics or fewer seeds"):
        learner = build_learner(plan, source, device)
    rows = memory_for("the rows of a replay buffer", "choose a smaller algo_kwargs.buffer_capacity")
    with rows, restoring() if plan.saved is not None else nullcontext():
        saved = plan.saved
        phases = phases_of(source, learner, saved) if phases_of else source.phases(learner, saved)
    updates_left = sum(phase.steps * phase.updates_per_step for phase in phases)
    stored = None if plan.saved is None else plan.saved["compile"]
    compiled = apply_compile(learner, plan.settings.compile, updates_left, stored)
    if plan.settings.products != "auto":
        learner.products = check_library(plan.settings.products, device.type)
    if learner.config.precision == "bf16" and device.type == "cpu" and not computes_bf16():
        slow = "precision: bf16 is slower than single on this processor, which has no instructions for it"
        warnings.warn(slow, stacklevel=2)
    notes = make_notes(plan, source, phases, compiled=compiled)
    bench = None
    if plan.judges_itself and isinstance(source, OfflineSource):
        bench = RunJudge(source.logged, source.settings)
    runs = [
        make_run(plan, source, notes, each, bench, first=index == 0)
        for index, each in enumerate(plan.configs)
    ]
    trainer = Trainer(
        learner,
        phases,
        runs,
        batch_size=plan.settings.batch_size,
        batches=RandomStream(
            [torch_generator(each.seed, "batch", device=device) for each in plan.configs], "unit64"
        ),
        update_budget=update_budget(plan.settings, source.rows),
    )
    if plan.saved is not None:
        try:
            with restoring():
                restore(trainer, runs[0], plan.saved)
        except BaseException:
            close_all(trainer, runs)
            raise
    return trainer, runs


def make_plan(config: TrainConfig, options: RunOptions) -> Plan:
    recipe = get_recipe(config.algo)
    check_parts(options)
    settings = config.run_config()
    given, wrappers = options.get("env"), options.get("wrappers")
    env = given if given is not None else config.env_id
    chosen = load_wrappers(config.wrappers) if wrappers is None else wrappers
    maker = None if env is None else env_maker(env, chosen)
    if config.online_timesteps and maker is None and not options.get("live"):
        raise ConfigError(
            f"env_id is required: online_timesteps {config.online_timesteps} are collected in an "
            "environment; for steps that your own loop makes, use go_live in Python"
        )
    return Plan(recipe, settings, seed_configs(config), maker, options)


def make_source(plan: Plan) -> RunSource:
    """Where the run's batches come from."""
    dataset, saved, settings = plan.options.get("dataset"), plan.saved, plan.settings
    source: OfflineSource | OnlineSource
    if isinstance(settings, OnlineFields):
        assert plan.env is not None  # the config's own check
        source = OnlineSource(plan.configs, settings, plan.env, dataset=dataset, saved=saved)
    else:
        assert isinstance(settings, OfflineFields)
        source = OfflineSource(
            plan.configs,
            settings,
            plan.recipe.needs(settings),
            env=plan.env,
            dataset=dataset,
            saved=saved,
            keep_logged=plan.judges_itself,
        )
    if saved is not None and not plan.options.get("allow_changed_data"):
        refuse_changed_data(saved["dataset"], source.summary)
    return source


def refuse_changed_data(then: Facts, now: Facts) -> None:
    """A run goes on exactly on the rows that it began with."""
    known = then.get("fingerprint")
    if known is not None and known != now.get("fingerprint"):
        raise DataError(
            f"{now.get('source')} has changed since this run was saved ({then.get('transitions')} rows then, "
            f"{now.get('transitions')} now): give the same data, or go on with what is there by "
            "--allow-changed-data (allow_changed_data=True in Python)"
        )


def build_learner(plan: Plan, source: RunSource, device: torch.device) -> Learner:
    """One learner for all seeds, its policy in the units of the source."""
    learners = [
        plan.recipe.build_learner(plan.settings, source.asked_spaces, seed=config.seed, device=device)
        for config in plan.configs
    ]
    group, known = plan.settings.schedule_groups, sorted(set(learners[0].groups.values()))
    if group != "all" and group not in known:
        raise ConfigError(
            f"algo_kwargs.schedule_groups must be all or {' or '.join(known)} for {plan.recipe.name}, "
            f"got {group!r}"
        )
    for learner in learners:
        learner.policy.memory = None if source.signals is None else SignalMemory.of(source.signals)
        if any(each.counted for each in learner.policy.inputs):
            counted = source.counted_signals()
            learner.policy.counter = None if counted is None else SignalMemory.of(counted)
        learner.policy.set_units(source.spaces, source.observation_steps)
        if learner.looks_at_data and source.dataset is not None:
            count = min(len(source.dataset), MOST_ROWS_LOOKED_AT)
            rows = torch.linspace(0, len(source.dataset) - 1, count, dtype=torch.float64).long()
            learner.look_at_data(source.dataset.to(device).gather(rows))
    check_network(learners[0], stacked=len(learners) > 1)
    return learners[0] if len(learners) == 1 else stack_learners(learners)


def make_notes(plan: Plan, source: RunSource, phases: Sequence[Phase], *, compiled: bool) -> RunNotes:
    options = plan.options
    stored = None if plan.saved is None else plan.saved["schedule_steps"]
    given = {
        "live": options.get("live", False),
        "dataset": options.get("dataset") is not None,
        "env": plan.env is not None and plan.env.factory is not None,
        "wrappers": plan.env is not None and bool(plan.env.wrappers) and not plan.configs[0].wrappers,
    }
    return RunNotes(
        schedule_steps=stored or plan.settings.schedule_steps or plan.configs[0].total_timesteps,
        compiled=compiled,
        processor=processor(),
        dataset=source.summary,
        in_python=tuple(name for name, is_given in given.items() if is_given),
        online_span=max(phase.online_span for phase in phases),
        parent=None if plan.saved is None else plan.saved.get("parent"),
    )


def make_run(
    plan: Plan,
    source: RunSource,
    notes: RunNotes,
    config: TrainConfig,
    bench: RunJudge | None,
    *,
    first: bool,
) -> Run:
    """One seed's directory and callbacks; of a stack, the first seed alone shows its progress."""
    options = plan.options
    held = options.get("claim") or RunLock(
        create_run_dir(config.output_dir, run_name(config), options.get("run_suffix"))
    )
    directory = held.run_dir
    write_text_atomic(directory / "config.yaml", config_to_yaml(config, settings=plan.settings))
    standard = standard_callbacks(
        plan, config, directory, notes, bench, quiet=options.get("quiet", False) or not first
    )
    if source.held_out is not None and issubclass(plan.recipe.learner, ModelLearner):
        standard.append(ModelErrors(source.held_out, source.rewards))
    return Run(
        config,
        plan.settings,
        directory,
        [*standard, *(options.get("callbacks") or ()), held],
        notes,
        env=plan.env,
        reference=source.reference,
        evaluators=[*source.evaluators, *(options.get("evaluators") or ())],
    )


def restore(trainer: Trainer[Run], run: Run, saved: State) -> None:
    """Put a run back to where its checkpoint was written."""
    trainer.load_state_dict(saved)
    before = saved.get("processor")
    if before not in (None, processor()):
        warnings.warn(
            f"this run was saved on another processor, {shown(before)}: on this one, {processor()}, numbers "
            "round otherwise, so that it goes on from the same state but not bit for bit",
            stacklevel=2,
        )
    run.results = dict(saved["results"])
    for key, callback in run.named_callbacks():
        state = saved["callbacks"].get(key)
        if state is not None:
            callback.load_state_dict(state)


def seed_configs(config: TrainConfig) -> list[TrainConfig]:
    """One ordinary config per seed of a stack."""
    if config.seeds is None:
        return [config]
    return [config.model_copy(update={"seed": seed, "seeds": None}) for seed in config.seeds]


class TrainFunction(Protocol):
    """`train` for one algorithm."""

    def __call__(self, config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult: ...


def train_function(algo: str) -> TrainFunction:
    """`train_<algo>` of the trainer modules."""

    def train_algorithm(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
        if config.algo != algo:
            raise ConfigError(f"algo must be {algo!r} for train_{algo}, got {config.algo!r}")
        return train(config, **options)

    train_algorithm.__name__ = f"train_{algo}"
    return train_algorithm
