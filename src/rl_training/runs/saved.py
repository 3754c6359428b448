"""A saved run, opened once: config, data, policy, critic, learner; and what its file is not trusted with.

A file outside a run directory may come from anywhere: it does not get to name files that are read, modules
that are imported, windows that are opened or trackers that are started.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict, TypeVar, Unpack

import gymnasium as gym

from rl_training.algorithms.dynamics import ModelLearner
from rl_training.algorithms.recipe import get_recipe
from rl_training.config.data import (
    COLLECTED_KINDS,
    NO_DATA,
    OfflineDataFields,
    TableFields,
)
from rl_training.config.run import ControlFields, RunFields, TrainConfig, parse_config
from rl_training.core.checkpoints import Checkpoint, resolve_checkpoint
from rl_training.core.errors import CheckpointError, ConfigError, UserError, WrongTypeError, shown
from rl_training.core.files import CHECKPOINT_FOLDER
from rl_training.core.machine import choose_device
from rl_training.core.registry import ALGORITHMS
from rl_training.core.schema import RunFacts
from rl_training.core.types import Facts, State
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.splits import FEWEST_EPISODES, one_after_another, split_episodes
from rl_training.judging.checks import TrainedCritic, critic_of_state
from rl_training.policies.policy import (
    BESIDE_THE_LEARNER,
    NOT_FOR_ACTING,
    Policy,
    missing_part,
    policy_of_state,
)
from rl_training.runtime.envs import EnvMaker, GivenEnv, Wrapper, env_maker
from rl_training.runtime.offline_data import data_sources, discounted_by_time, load_parts

if TYPE_CHECKING:
    pass

PATHS = ("dataset_path", "dataset_checkpoint", "query")

PLAIN_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_+ -]{0,39}")
"""Text that can be neither a path with a folder or an ending, nor a module with an attribute."""
PLACES = {"path", "file", "filename", "dir", "directory", "folder", "url", "uri"}
PROGRAMS = {"module", "class", "package", "import", "plugin", "entry", "command"}
WINDOWS = {"render", "renders", "rendering", "gui", "display", "viewer", "visualize", "visualise", "window"}
"""Words in the names of keywords; `render_mode` has one of them."""

Config = TypeVar("Config", bound=RunFields)


class Surroundings(TypedDict, total=False):
    """The environment of a policy, as far as the user says it."""

    env: GivenEnv | EnvMaker | None
    wrappers: Sequence[Wrapper] | None
    env_kwargs: Facts | None


class SavedRun:
    """What a run directory (its newest checkpoint) or a checkpoint file holds.

    Nothing is read before it is asked for, and nothing twice; what comes of it is that of one checkpoint,
    also while the run goes on training. A file outside a run directory may come from anywhere: the paths it
    names are not followed.
    """

    def __init__(self, path: str | os.PathLike[str], *, device: str = "auto") -> None:
        if not isinstance(path, str | os.PathLike):
            raise WrongTypeError(f"path must name a run directory or a checkpoint, got {type(path).__name__}")
        self.path = Path(path)
        self.file = resolve_checkpoint(self.path)
        self.device = device

    def __repr__(self) -> str:
        return f"SavedRun({str(self.path)!r})"

    @cached_property
    def checkpoint(self) -> Checkpoint:
        """The opened file."""
        return Checkpoint(self.file)

    @property
    def facts(self) -> RunFacts:
        """What the file says beside its tensors."""
        return self.checkpoint.facts

    @property
    def run_dir(self) -> Path | None:
        """The run directory that the checkpoint lies in, where it lies in one."""
        return self.file.parent.parent if in_a_run(self.file) else None

    @property
    def place_for_new_run(self) -> Path:
        """Beside the run of the checkpoint, or `runs` for a file from anywhere: files do not choose."""
        return Path("runs") if self.run_dir is None else self.file.resolve().parent.parent.parent

    # ---- its settings

    @cached_property
    def config(self) -> TrainConfig:
        """The config of the run, checked against this version's settings."""
        self.require_algorithm()
        with _fitting_this_version():
            return parse_config(self.facts.config)

    def require_algorithm(self) -> None:
        """Acting needs no algorithm, all else does."""
        if self.facts.algo not in ALGORITHMS:
            raise CheckpointError(missing_part("algorithm", self.facts.algo, self.facts.algo_package))

    @property
    def settings(self) -> ControlFields:
        """The typed settings of its algorithm, data and schedule, with every default filled in."""
        return self.config.run_config()

    @property
    def gamma(self) -> float | None:
        """Its discount of future rewards; none where its algorithm does not look ahead."""
        gamma: float | None = getattr(self.settings, "gamma", None)
        return gamma

    # ---- its networks

    @cached_property
    def state(self) -> State:
        """Everything of the checkpoint that is not about training on."""
        return self.checkpoint.read_run(skip=NOT_FOR_ACTING)

    @cached_property
    def policy(self) -> Policy:
        """What acts, complete: network, scaling, bounds."""
        return policy_of_state(self.state, choose_device(self.device), self.file)

    def training_state(self, purpose: str, *, skip: Sequence[str] = ()) -> State:
        """The whole state, to go on training with; it is not kept, replay rows may be large."""
        found = self.checkpoint.read_run(skip=skip)
        if "learner" not in found:
            raise CheckpointError(f"{self.file} holds a policy without its learner; {purpose} of the run")
        return found

    @cached_property
    def learner(self) -> State:
        """The state of the learner, for `Learner.load_state_dict`."""
        found = self.training_state("give a checkpoint", skip=("policy", *BESIDE_THE_LEARNER))
        learner: State = found["learner"]
        return learner

    @cached_property
    def critic(self) -> TrainedCritic | None:
        """The critic that it was trained with; none where there is none whose units can be told."""
        policy = policy_of_state(self.state, source=self.file)
        return critic_of_state({"learner": self.learner}, self.config, policy)

    # ---- its data

    @property
    def data_name(self) -> str | None:
        """Where its data lies or comes from; none where it has none to go back to."""
        settings = self.settings
        if not isinstance(settings, OfflineDataFields) or "dataset" in self.facts.in_python:
            return None
        names = [
            f"{kind} data of {self.config.env_id} (seed {source.dataset_seed})"
            if kind in COLLECTED_KINDS
            else source.dataset_id or source.dataset_path
            for kind, source in data_sources(settings)
            if kind != NO_DATA
        ]
        return " + ".join(map(str, names)) or None

    @cached_property
    def data_parts(self) -> list[TransitionDataset]:
        """The rows that it learned from, as they were logged, one dataset per part of its recipe."""
        if self.data_name is None:
            raise UserError(
                f"{self.path} has no data to go back to: it learned in an environment, or from a dataset "
                "that was passed in memory"
            )
        settings = self.settings
        assert isinstance(settings, OfflineDataFields)
        self.refuse_foreign_paths({})
        env, config = None, self.config
        if any(kind in COLLECTED_KINDS for kind, _ in data_sources(settings)):
            env, config = environment_for(config, self.facts.in_python)
        return load_parts(config, env)

    @cached_property
    def data(self) -> TransitionDataset:
        """The rows that it learned from, as they were logged, with names and units."""
        return one_after_another(self.data_parts)

    @property
    def learned_in_a_model(self) -> bool:
        """Whether its policy was made inside a model of the plant, which no judgement may share."""
        return issubclass(get_recipe(self.facts.algo).learner, ModelLearner)

    @cached_property
    def held_out_data(self) -> TransitionDataset | None:
        """The episodes of its data that training never saw; none where they are too few to judge by."""
        settings = self.settings
        if not isinstance(settings, OfflineDataFields) or not settings.validation_share:
            return None
        share, seed = settings.validation_share, settings.dataset_seed
        held = [split_episodes(part, share, seed)[1] for part in self.data_parts]
        enough = sum(int(each.episode_ends().sum()) for each in held) >= FEWEST_EPISODES
        return one_after_another(held) if enough else None

    @property
    def seen_in_training(self) -> str | None:
        """What to say where a policy made in a model is judged by episodes that the model was fitted to."""
        if not self.learned_in_a_model or self.held_out_data is not None:
            return None
        return (
            f"{self.path.name} was found in a model of these very episodes: fewer than {FEWEST_EPISODES} "
            "were held out of its training, so that what follows is drawn upwards. With a log of "
            f"{2 * FEWEST_EPISODES} episodes or more enough are held out by themselves; or give the judge "
            "other episodes with --data."
        )

    @property
    def table_fields(self) -> State:
        """How it reads tables, as dataset fields of a config: columns, empty cells and so on."""
        given = self.config.to_dict()["algo_kwargs"]
        return {name: given[name] for name in TableFields.model_fields if given.get(name) is not None}

    @property
    def discount_by_time(self) -> bool:
        """Whether it discounted steps by their duration."""
        settings = self.settings
        return isinstance(settings, OfflineDataFields) and any(discounted_by_time(settings))

    def refuse_foreign_paths(self, given: Facts) -> None:
        """Every path that the config names must be among those that the user gives."""
        refuse_foreign_paths(self.file, self.config.algo_kwargs, given)


def open_run(path: str | os.PathLike[str]) -> SavedRun:
    """Open a run directory or a checkpoint: `open_run("runs/RUN").policy`, `.config`, `.data` and so on."""
    return SavedRun(path)


def acting_fields(config: Facts) -> tuple[RunFields, ControlFields]:
    """As much of a saved config as acting needs: also where the algorithm is not known."""
    with _fitting_this_version():
        fields = RunFields.build(config)
        known = fields.algo_kwargs.keys() & ControlFields.model_fields
        return fields, ControlFields.build({name: fields.algo_kwargs[name] for name in known})


@contextmanager
def _fitting_this_version() -> Iterator[None]:
    try:
        yield
    except ConfigError as problem:
        raise CheckpointError(
            f"this checkpoint's config does not fit this version: {'; '.join(str(problem).splitlines())}"
        ) from problem


# ---- what a file is not trusted with


def in_a_run(file: Path) -> bool:
    """Whether a checkpoint lies where a run saves it."""
    return file.parent.name == CHECKPOINT_FOLDER


def refuse_foreign_paths(file: Path, settings: Facts, given: Facts) -> None:
    """Every path among a file's settings (`algo_kwargs`) must be among those that the user gives."""
    if in_a_run(file):
        return
    parts = settings.get("dataset_parts") or ()
    named = {key: settings[key] for key in PATHS if settings.get(key) is not None and key not in given}
    if "dataset_parts" not in given:
        for index, part in enumerate(parts):
            named |= {f"dataset_parts[{index}].{key}": part[key] for key in PATHS if part.get(key)}
    for key, path in named.items():
        remedy = f"--data {path}" if key == "dataset_path" else "dataset= in Python"
        raise ConfigError(
            f"algo_kwargs.{key} {path!r} comes from a checkpoint outside a run directory and is not "
            f"followed; if you trust it, give it yourself: {remedy}"
        )


def refuse_import(env_id: str) -> str:
    """An id out of a file, unless using it would import a module that the file names."""
    module, colon, _ = env_id.partition(":")
    if colon and env_id not in gym.registry:
        raise ConfigError(
            f"env_id {env_id!r} comes from a file and would import the module {module!r}; "
            f"if you trust it, give it yourself: --env-id {env_id}, or env={env_id!r} in Python"
        )
    return env_id


def trusted_kwargs(saved: Facts, given: Facts | None) -> State:
    """The environment's keywords: the user's, else those of a file if they are numbers and plain words."""
    if given is not None:
        return dict(given)
    for name, value, danger in dangers("env_kwargs", saved):
        text = json.dumps(saved)
        remedy = shlex.quote(text) if len(text) <= 200 else "'{…}'"
        raise ConfigError(
            f"{name} {shown(value)} comes from a file and {danger}; give the keywords yourself, all that you "
            f"trust: --env-kwargs {remedy}, or env_kwargs={{…}} in Python"
        )
    return dict(saved)


def dangers(name: str, value: object) -> Iterator[tuple[str, object, str]]:
    """Name, value and danger of every entry that would let a file reach beyond the environment."""
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from dangers(f"{name}.{key}", inner)
    elif isinstance(value, Sequence) and not isinstance(value, str):
        for index, inner in enumerate(value):
            yield from dangers(f"{name}[{index}]", inner)
    elif (danger := danger_of(name.rpartition(".")[2], value)) is not None:
        yield name, value, danger


def danger_of(key: str, value: object) -> str | None:
    words = set(re.split(r"[^a-z]+", key.lower()))
    is_text = isinstance(value, str)
    if value == "human" or (words & WINDOWS and (value == 1 or (is_text and value != "rgb_array"))):
        return "could open a window"
    if not isinstance(value, str):
        return None
    if words & (PLACES | PROGRAMS) or not PLAIN_WORD.fullmatch(value) or os.path.lexists(value):
        return "could make the environment open a file or import a module"
    return None


def with_trackers(config: TrainConfig, given: Sequence[str] | None) -> TrainConfig:
    """The config with the trackers that the user names; those of a file are left out, with a word."""
    if given is None and config.trackers:
        names = ", ".join(config.trackers)
        options = " ".join(f"--tracker {name}" for name in config.trackers)
        warnings.warn(
            f"the run goes on without its tracker {names}: a file does not start one; "
            f"to use it, say {options} (tracker_names={list(config.trackers)} in Python)",
            stacklevel=3,
        )
    return config.replace(trackers=given or ())


def environment_for(
    config: Config, in_python: Sequence[str] = (), **given: Unpack[Surroundings]
) -> tuple[EnvMaker | None, Config]:
    """The environment for a saved config, and the config with its keywords.

    Both are what the user gives, else what the file names if that reaches for nothing; what was passed to
    the run `in_python`, no file can name.
    """
    env, wrappers = given.get("env"), given.get("wrappers")
    if env is None and "env" in in_python:
        raise ConfigError("env must be given: this run's environment was passed as an object")
    if wrappers is None and (config.wrappers or "wrappers" in in_python):
        options = " ".join(f"--wrapper {name}" for name in config.wrappers) or "wrappers=[…] in Python"
        raise ConfigError(
            "wrappers must be given again: they are code, which a checkpoint does not get to import; "
            f"if you trust them: {options}"
        )
    if env is None and config.env_id is None:
        if wrappers:
            raise ConfigError("wrappers need env_id: this policy was trained without an environment")
        return None, config
    if env is None:
        env = refuse_import(config.env_id or "")
    maker = env_maker(env, wrappers or ())
    if maker.factory is not None:
        return maker, config  # made by the user, without keywords of ours
    return maker, config.replace(env_kwargs=trusted_kwargs(config.env_kwargs, given.get("env_kwargs")))


def environment_to_collect_in(
    run: SavedRun | None, env_id: str | None, env_kwargs: Facts | None
) -> tuple[str, State]:
    """The environment that the user names, else the one that a saved policy was trained for."""
    if env_id is not None:
        return env_id, dict(env_kwargs or {})
    if run is None:
        raise ConfigError("--env-id is required (or --checkpoint of a run that has one)")
    config, _ = acting_fields(run.facts.config)
    if config.env_id is None:
        raise ConfigError(f"--env-id is required: {run.path} was trained without an environment")
    return refuse_import(config.env_id), trusted_kwargs(config.env_kwargs, env_kwargs)
