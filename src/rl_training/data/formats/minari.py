"""What the metadata of a Minari dataset may say, checked before Minari acts on it.

Minari makes the environment that `env_spec` describes, whatever module that is in, where the metadata lacks a
space; so both must be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.config.data import DatasetSource
from rl_training.core.errors import DataError, install_hint
from rl_training.core.files import parse_json
from rl_training.core.schema import MAX_WIDTH, SchemaProblem, fact, read_facts
from rl_training.core.spaces import Spaces
from rl_training.core.types import Array
from rl_training.data.episodes import broken_successions, episode_lengths
from rl_training.data.fields import all_fields
from rl_training.data.formats import Format
from rl_training.data.formats.hdf5 import HDF5_PROBLEMS, open_hdf5
from rl_training.data.info import DataInfo, ReferenceReturns
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import Target, check_numeric, failures_as, files_below, matrix

METADATA_FILE = "metadata.json"


@dataclass(frozen=True)
class OwnFacts:
    """What conversions of ours keep there."""

    env_id: str | None = None
    successors: str | None = None
    rows: int | None = fact(None, least=0)
    reference_source: str | None = None


@dataclass(frozen=True)
class MinariFacts:
    """The entries that matter here; Minari and others write more."""

    dataset_id: str
    minari_version: str
    data_format: str
    total_episodes: int = fact(least=0)
    total_steps: int = fact(least=0)
    observation_space: str = fact()
    action_space: str = fact()
    env_spec: str | None = None
    ref_min_score: float | None = None
    ref_max_score: float | None = None
    rl_training: OwnFacts | None = None

    @property
    def own(self) -> OwnFacts:
        return self.rl_training or OwnFacts()


@dataclass(frozen=True)
class BoxFacts:
    """A space as Minari writes it."""

    type: str
    shape: tuple[int, ...] = fact((), longest=8)
    low: tuple[Any, ...] = ()
    high: tuple[Any, ...] = ()


def read_minari_facts(directory: Path, dataset_id: str) -> MinariFacts:
    """The metadata in a dataset's `data` folder; whatever is wrong in it is one line."""
    try:
        facts = read_facts(MinariFacts, parse_json((directory / METADATA_FILE).read_bytes()), others=True)
        for name, text in (("observations", facts.observation_space), ("actions", facts.action_space)):
            _check_space(read_facts(BoxFacts, parse_json(text), others=True), name)
    except FileNotFoundError:
        raise DataError(f"{dataset_id}: has no {METADATA_FILE}") from None
    except (OSError, ValueError, SchemaProblem) as problem:
        raise DataError(f"{dataset_id}: {METADATA_FILE} cannot be used: {problem}") from None
    return facts


def _check_space(space: BoxFacts, name: str) -> None:
    if space.type != "Box" or len(space.shape) != 1:
        raise SchemaProblem(
            f"{name} are {space.type} {space.shape or ''}, only flat vectors (Box) are supported"
        )
    (size,) = space.shape
    if not 0 < size <= MAX_WIDTH or not len(space.low) == len(space.high) == size:
        raise SchemaProblem(
            f"the space of {name} must have a bound per number, 1 to {MAX_WIDTH} of them, got shape "
            f"{space.shape} with {len(space.low)} and {len(space.high)} bounds"
        )


OWN_KEY = "rl_training"  # a field of `MinariFacts`
"""Metadata key under which conversions keep what Minari has no place for."""

INFO_PREFIX = "rl_training_"
"""Start of the names of `infos` entries that hold optional fields and rows without a successor."""


def read_minari(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read a local dataset episode by episode."""
    dataset_id, root = name_and_root(source)
    problems = (*HDF5_PROBLEMS, AssertionError, ImportError, AttributeError, IndexError)
    with failures_as(f"{dataset_id}: cannot be read as a Minari dataset; it is damaged", *problems):
        return _read(dataset_id, root, target)


def name_and_root(source: DatasetSource) -> tuple[str, Path | None]:
    """The id and the folder of datasets (None: Minari's own); a path without an id is the dataset's own."""
    if source.dataset_id is not None:
        return source.dataset_id, None if source.dataset_path is None else Path(source.dataset_path)
    if source.dataset_path is None:
        raise DataError("dataset_id is required by dataset_kind 'minari'")
    folder = Path(source.dataset_path).absolute()
    return folder.name, folder.parent


def _read(dataset_id: str, root: Path | None, target: Target) -> EpisodeLog:
    facts, dataset = _open(dataset_id, root)
    info = _describe(facts, dataset.observation_space, dataset.action_space, dataset_id)
    rows = dataset.total_steps if facts.own.rows is None else facts.own.rows
    columns: dict[str, Array] = {}
    start = 0
    for number, episode in enumerate(dataset.iterate_episodes()):
        piece = _episode(episode, f"{dataset_id}: episode {number}", facts.own.successors != "next_row")
        for field, values in piece.items():
            if field not in columns:
                check_numeric(field, values.dtype, dataset_id)
                columns[field] = target.array(field, (rows, *values.shape[1:]), values.dtype)
            columns[field][start : start + len(values)] = values
        start += len(piece["rewards"])
    if not start:
        raise DataError(f"{dataset_id}: the dataset is empty (0 rows)")
    if start != rows:
        raise DataError(f"{dataset_id}: its metadata promises {rows} steps, but its episodes have {start}")
    return EpisodeLog.build(columns, info=info, lenient=target.lenient)


def installed_ids(root: Path | None = None) -> list[str]:
    """Ids of the local datasets."""
    folder = datasets_root(root)
    found = [path.parent.parent for path in sorted(folder.glob("**/data/metadata.json"))]
    return [path.relative_to(folder).as_posix() for path in found]


def _episode(episode: Any, where: str, with_successors: bool) -> dict[str, Array]:
    """The rows of one episode by field."""
    obs, actions = np.asarray(episode.observations), np.asarray(episode.actions)
    steps = len(episode.rewards)
    if not len(obs) == len(actions) + 1 == steps + 1:
        raise DataError(
            f"{where} has {len(obs)} observations, {len(actions)} actions and {steps} rewards; "
            "Minari episodes have one observation more than steps"
        )
    ended = np.zeros(steps, dtype=bool)
    ended[-1:] = True
    piece = {"obs": obs[:-1], "actions": actions, "rewards": np.asarray(episode.rewards)}
    if with_successors:
        piece["next_obs"] = obs[1:]
    piece |= {"terminated": np.asarray(episode.terminations), "truncated": np.asarray(episode.truncations)}
    piece["episode_ends"] = ended
    return _with_infos(piece, episode.infos or {}, obs, with_successors)


def _with_infos(
    piece: dict[str, Array], infos: dict[str, Any], obs: Array, with_successors: bool
) -> dict[str, Array]:
    """Add optional fields, and the last step whose successor was never recorded, from our `infos`."""
    further = [field.name for field in all_fields() if INFO_PREFIX + field.name in infos]
    piece |= {name: np.asarray(infos[INFO_PREFIX + name])[:-1] for name in further}
    if with_successors or not bool(np.asarray(infos.get(INFO_PREFIX + "unfinished", [False]))[-1]):
        return piece
    ours = {"actions": "action", "rewards": "reward", **{name: name for name in further}}
    extra = {field: np.asarray(infos[INFO_PREFIX + name])[-1:] for field, name in ours.items()}
    extra |= {"obs": obs[-1:], "terminated": np.array([False])}
    extra |= {"truncated": np.array([True]), "episode_ends": np.array([True])}
    for flag in ("truncated", "episode_ends"):
        piece[flag] = np.zeros_like(piece[flag])
    return {name: np.concatenate([values, extra[name]]) for name, values in piece.items()}


def _describe(facts: MinariFacts, observation: Any, action: Any, dataset_id: str) -> DataInfo:
    reference = None
    if facts.ref_min_score is not None and facts.ref_max_score is not None:
        source = facts.own.reference_source or f"Minari dataset {dataset_id}"
        reference = ReferenceReturns(facts.ref_min_score, facts.ref_max_score, source)
    env_id = facts.own.env_id
    if env_id is None and facts.env_spec:
        described = parse_json(facts.env_spec)
        env_id = described.get("id") if isinstance(described, dict) else None
    named = env_id if isinstance(env_id, str) else None
    return DataInfo(dataset_id, _spaces(observation, action), named, reference)


def _spaces(observation: Any, action: Any) -> Spaces | None:
    """Sizes and bounds, where the actions have any."""
    low, high = (tuple(float(value) for value in bound) for bound in (action.low, action.high))
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        return None
    return Spaces(int(observation.shape[0]), low, high)


def id_folder(dataset_id: str, root: Path | None) -> Path:
    """The folder of an id, which cannot lie outside the root."""
    parts = Path(dataset_id).parts
    if not parts or ".." in parts or Path(dataset_id).is_absolute():
        raise DataError(f"dataset_id must be a name such as D4RL/door/human-v2, got {dataset_id!r}")
    return datasets_root(root) / dataset_id


def dataset_directory(dataset_id: str, root: Path | None) -> Path:
    """Where the files of a dataset lie; one that is not installed is refused with a list of what is."""
    id_folder(dataset_id, root)
    folder = datasets_root(root)
    if not (folder / dataset_id / "data").is_dir():
        installed = installed_ids(root)
        listed = ", ".join(installed) if installed else "none"
        raise DataError(
            f"dataset_id must name a Minari dataset in {folder}, got {dataset_id!r}; installed: {listed} "
            f"(download one with: minari download {dataset_id})"
        )
    files_below(folder / dataset_id)  # refuses links that lead out of it
    return folder / dataset_id / "data"


def _open(dataset_id: str, root: Path | None) -> tuple[MinariFacts, Any]:
    minari = import_minari()
    directory = dataset_directory(dataset_id, root)
    facts = read_minari_facts(directory, dataset_id)
    for file in sorted(directory.glob("*.hdf5")):
        with open_hdf5(file):  # a look at its links, before Minari follows them
            pass
    return facts, minari.MinariDataset(directory)


def datasets_root(root: Path | None) -> Path:
    """The directory that holds Minari datasets: the given one, or Minari's own."""
    if root is not None:
        return root
    import_minari()
    from minari.storage.datasets_root_dir import get_dataset_path

    return Path(get_dataset_path())


def import_minari() -> Any:
    """The minari package, or how to install it."""
    try:
        import minari
    except ImportError:
        raise DataError(f"Minari datasets need minari; {install_hint('minari')}") from None
    return minari


def is_minari(path: Path) -> bool:
    """The folder of one dataset, as Minari downloads and writes it."""
    return (path / "data" / "metadata.json").is_file()


MINARI = Format(read=read_minari, recognise=is_minari, table_fields=())


def write_minari(log: EpisodeLog, dataset_id: str, folder: Path) -> None:
    """Write the data directory of `dataset_id` into `folder`.

    Minari wants one observation more than steps. The last row of a timed-out episode without a recorded
    successor is therefore no step there: its action and reward go to the `infos` of its observation, so that
    no false transition is written and reading it back loses nothing.
    """
    minari = import_minari()
    from minari.dataset.minari_storage import MinariStorage

    spaces = log.info.spaces
    if spaces is None:
        raise DataError(
            f"{log.info.source}: a Minari dataset states its action bounds, which this data does not carry; "
            "give --action-low and --action-high (or --env-id)"
        )
    _check_episodes(log)
    observation_space, action_space = _gym_spaces(spaces, log)
    storage = MinariStorage.new(
        folder.resolve(),  # Minari looks for its files in the wrong place when the path is relative
        observation_space=observation_space,
        action_space=action_space,
        env_spec=_env_spec(log.info.env_id),
        jpeg_encoding=False,
    )
    episodes = _episodes(log)
    storage.update_metadata(_metadata(log, dataset_id, minari.__version__, episodes))
    storage.update_episodes(minari.data_collector.EpisodeBuffer(**episode) for episode in episodes)


def _check_episodes(log: EpisodeLog) -> None:
    if log.next_obs is None:
        return
    broken = broken_successions(log.obs, log.next_obs)
    torn = broken[~log.ends[broken]]
    if len(torn):
        raise DataError(
            f"{log.info.source}: row {int(torn[0])} is not followed by its next observation, so its episodes "
            "cannot be written for Minari; choose hdf5, npz or parquet"
        )


def _episodes(log: EpisodeLog) -> list[dict[str, Any]]:
    stops = np.flatnonzero(log.ends) + 1
    ranges = zip(stops - episode_lengths(log.ends), stops, strict=True)
    found = [_episode_arrays(log, slice(int(start), int(stop))) for start, stop in ranges]
    return [episode for episode in found if len(episode["rewards"])]


def _episode_arrays(log: EpisodeLog, rows: slice) -> dict[str, Any]:
    obs, last = log.obs[rows], rows.stop - 1
    unfinished = log.next_obs is None and not log.terminated[last]
    steps = slice(rows.start, last) if unfinished else rows
    if log.next_obs is not None:
        obs = np.concatenate([obs, log.next_obs[last : last + 1]])
    elif not unfinished:
        obs = np.concatenate([obs, obs[-1:]])  # stands in for a successor that a terminal row does not need
    truncated = log.truncated[steps].copy()
    truncated[-1:] |= unfinished
    return {
        "observations": obs,
        "actions": matrix(log.actions[steps]),
        "rewards": log.rewards[steps],
        "terminations": log.terminated[steps],
        "truncations": truncated,
        "infos": _infos(log, rows, unfinished) or None,
    }


def _infos(log: EpisodeLog, rows: slice, unfinished: bool) -> dict[str, Array]:
    """One entry per observation. Fields beyond Minari's own, and the row without a successor."""
    steps = {name: values[rows] for name, values in log.further.items()}
    if log.next_obs is None:
        steps |= {"action": matrix(log.actions[rows]), "reward": log.rewards[rows]}
        steps["unfinished"] = np.arange(rows.start, rows.stop) == (rows.stop - 1 if unfinished else -1)
    if not unfinished:  # there is one observation more than steps
        steps = {name: np.concatenate([values, values[-1:]]) for name, values in steps.items()}
    return {INFO_PREFIX + name: values for name, values in steps.items()}


def _metadata(
    log: EpisodeLog, dataset_id: str, version: str, episodes: list[dict[str, Any]]
) -> dict[str, Any]:
    own: dict[str, Any] = {"env_id": log.info.env_id}
    if log.next_obs is None:
        unfinished = (episode["infos"][INFO_PREFIX + "unfinished"][-1] for episode in episodes)
        own["successors"] = "next_row"
        own["rows"] = sum(len(episode["rewards"]) for episode in episodes) + int(sum(unfinished))
    metadata: dict[str, Any] = {"dataset_id": dataset_id, "minari_version": version, OWN_KEY: own}
    if log.info.reference is not None:
        own["reference_source"] = log.info.reference.source
        metadata["ref_min_score"] = log.info.reference.minimum
        metadata["ref_max_score"] = log.info.reference.maximum
    return metadata


def _gym_spaces(spaces: Spaces, log: EpisodeLog) -> tuple[Any, Any]:
    from gymnasium.spaces import Box

    low, high = (np.array(bound, dtype=np.float64) for bound in (spaces.action_low, spaces.action_high))
    width = log.obs.shape[1] if log.obs.ndim > 1 else 1
    observation = Box(-np.inf, np.inf, (width,), dtype=log.obs.dtype.type)
    return observation, Box(
        low.astype(log.actions.dtype), high.astype(log.actions.dtype), dtype=log.actions.dtype.type
    )


def _env_spec(env_id: str | None) -> Any:
    """Gymnasium's description of the environment, where it is registered here."""
    import gymnasium

    return None if env_id is None else gymnasium.registry.get(env_id)
