"""Minari datasets on this machine: whole episodes with T + 1 observations each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from rl_training.config.data_fields import DatasetSource
from rl_training.core.errors import DataError
from rl_training.core.extras import install_hint
from rl_training.core.json_text import parse_json
from rl_training.core.spaces import Spaces
from rl_training.data.data_info import DataInfo, ReferenceReturns
from rl_training.data.episode_log import EpisodeLog
from rl_training.data.episodes import Array
from rl_training.data.formats import Format
from rl_training.data.formats.minari_facts import MinariFacts, read_minari_facts
from rl_training.data.hdf5_files import HDF5_PROBLEMS, open_hdf5
from rl_training.data.reading import Target
from rl_training.data.validation import check_numeric

OWN_KEY = "rl_training"  # a field of `MinariFacts`
"""Metadata key under which conversions keep what Minari has no place for."""

INFO_PREFIX = "rl_training_"
"""Start of the names of `infos` entries that hold optional fields and rows without a successor."""


def read_minari(source: DatasetSource, target: Target) -> EpisodeLog:
    """Read a local dataset episode by episode; its path is the folder of datasets (default: Minari's own)."""
    if source.dataset_id is None:
        raise DataError("dataset_id is required by dataset_kind 'minari'")
    root = None if source.dataset_path is None else Path(source.dataset_path)
    try:
        return _read(source.dataset_id, root, target)
    except DataError:
        raise
    except (OSError, *HDF5_PROBLEMS, AssertionError, ImportError, AttributeError, IndexError) as problem:
        text = " ".join(str(problem).split()) or type(problem).__name__
        raise DataError(
            f"{source.dataset_id}: cannot be read as a Minari dataset; it is damaged ({text})"
        ) from None


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
    for field in ("next_actions", "returns_to_go"):
        if INFO_PREFIX + field in infos:
            piece[field] = np.asarray(infos[INFO_PREFIX + field])[:-1]
    if with_successors or not bool(np.asarray(infos.get(INFO_PREFIX + "unfinished", [False]))[-1]):
        return piece
    last = {name: np.asarray(infos[INFO_PREFIX + name])[-1:] for name in ("action", "reward")}
    extra = {"obs": obs[-1:], "actions": last["action"], "rewards": last["reward"]}
    extra |= {
        "terminated": np.zeros(1, bool),
        "truncated": np.ones(1, bool),
        "episode_ends": np.ones(1, bool),
    }
    for field in ("next_actions", "returns_to_go"):
        if field in piece:
            extra[field] = np.asarray(infos[INFO_PREFIX + field])[-1:]
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


MINARI = Format(read=read_minari)
