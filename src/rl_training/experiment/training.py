"""Training: from a config to a finished run directory, the one way for every algorithm."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Unpack

import torch

from rl_training.algorithms.learner import Learner
from rl_training.algorithms.recipe import get_recipe
from rl_training.algorithms.stacking import stack_learners
from rl_training.config.data_fields import OfflineFields
from rl_training.config.run_fields import OnlineFields
from rl_training.core.atomic import write_text_atomic
from rl_training.core.config_files import config_to_yaml
from rl_training.core.devices import choose_device
from rl_training.core.errors import ConfigError, DataError
from rl_training.core.plain import Facts, State
from rl_training.core.run_state import restoring
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.core.train_config import TrainConfig
from rl_training.experiment.claims import DirectoryClaim
from rl_training.experiment.execution import close_all, combine, execute
from rl_training.experiment.network_checks import check_network
from rl_training.experiment.plans import Plan, update_budget
from rl_training.experiment.run_options import RunOptions, check_parts
from rl_training.experiment.runs import create_run_dir
from rl_training.experiment.self_judging import Bench
from rl_training.experiment.standard_callbacks import standard_callbacks
from rl_training.runtime.compiling import apply_compile
from rl_training.runtime.environments import env_maker
from rl_training.runtime.loop import Phase, Trainer
from rl_training.runtime.run import Run, RunNotes, TrainResult
from rl_training.runtime.sources.base import RunSource
from rl_training.runtime.sources.offline import OfflineSource
from rl_training.runtime.sources.online import OnlineSource
from rl_training.runtime.wrappers import load_wrappers

PhasesOf = Callable[[RunSource, Learner, State | None], list[Phase]]


def train(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
    """Train from the beginning, or on from `checkpoint_state`; in `run_dir`, or in a new directory."""
    return combine(execute(*assemble(make_plan(config, options))))


def assemble(plan: Plan, phases_of: PhasesOf | None = None) -> tuple[Trainer[Run], list[Run]]:
    """The loop and the run of every seed, at their beginning or where a checkpoint was written.

    `phases_of` makes the phases where they are not those of the source.
    """
    source = make_source(plan)
    device = choose_device(plan.configs[0].device)
    learner = build_learner(plan, source, device)
    with restoring() if plan.saved is not None else nullcontext():
        phases = (phases_of or default_phases)(source, learner, plan.saved)
    notes = make_notes(plan, source, phases, compiled=apply_compile_setting(plan, learner, phases))
    bench = make_bench(plan, source)
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


def default_phases(source: RunSource, learner: Learner, saved: State | None) -> list[Phase]:
    return source.phases(learner, saved)


def make_plan(config: TrainConfig, options: RunOptions) -> Plan:
    recipe = get_recipe(config.algo)
    check_parts(options)
    settings = config.run_config()
    given, wrappers = options.get("env"), options.get("wrappers")
    if wrappers is None:
        wrappers = load_wrappers(config.wrappers)
    env = given if given is not None else config.env_id
    maker = None if env is None else env_maker(env, wrappers)
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
            plan.recipe.learner.needs,
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
    sizes = (source.spaces.obs_dim, source.spaces.action_dim)
    learners = [
        plan.recipe.build_learner(plan.settings, *sizes, seed=config.seed, device=device)
        for config in plan.configs
    ]
    check_schedule_group(plan, learners[0])
    for learner in learners:
        learner.policy.set_units(source.spaces, source.observation_steps)
    check_network(learners[0], stacked=len(learners) > 1)
    return learners[0] if len(learners) == 1 else stack_learners(learners)


def check_schedule_group(plan: Plan, learner: Learner) -> None:
    group, known = plan.settings.schedule_groups, sorted(set(learner.groups.values()))
    if group != "all" and group not in known:
        raise ConfigError(
            f"algo_kwargs.schedule_groups must be all or {' or '.join(known)} for {plan.recipe.name}, "
            f"got {group!r}"
        )


def apply_compile_setting(plan: Plan, learner: Learner, phases: Sequence[Phase]) -> bool:
    updates_left = sum(phase.steps * phase.updates_per_step for phase in phases)
    stored = None if plan.saved is None else plan.saved["compile"]
    return apply_compile(learner, plan.settings.compile, updates_left, stored)


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
        dataset=source.summary,
        in_python=tuple(name for name, is_given in given.items() if is_given),
        online_span=max(phase.online_span for phase in phases),
        parent=None if plan.saved is None else plan.saved.get("parent"),
    )


def make_bench(plan: Plan, source: RunSource) -> Bench | None:
    """What judges the policies of all seeds in the end, where the run judges itself."""
    if not plan.judges_itself or not isinstance(source, OfflineSource):
        return None
    return Bench(source.logged, source.settings)


def make_run(
    plan: Plan,
    source: RunSource,
    notes: RunNotes,
    config: TrainConfig,
    bench: Bench | None,
    *,
    first: bool,
) -> Run:
    """One seed's directory and callbacks; of a stack, the first seed alone shows its progress."""
    options = plan.options
    directory = options.get("run_dir") or create_run_dir(
        config.output_dir, run_name(config), options.get("run_suffix")
    )
    held = DirectoryClaim(directory)
    write_text_atomic(directory / "config.yaml", config_to_yaml(config, settings=plan.settings))
    standard = standard_callbacks(
        plan, config, directory, notes, bench, quiet=options.get("quiet", False) or not first
    )
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


def run_name(config: TrainConfig) -> str:
    return f"{config.algo}-{config.env_id or 'data'}-s{config.seed}"


def train_function(algo: str) -> Callable[..., TrainResult]:
    """`train_<algo>` of the trainer modules."""

    def train_algorithm(config: TrainConfig, **options: Unpack[RunOptions]) -> TrainResult:
        if config.algo != algo:
            raise ConfigError(f"algo must be {algo!r} for train_{algo}, got {config.algo!r}")
        return train(config, **options)

    train_algorithm.__name__ = f"train_{algo}"
    return train_algorithm
