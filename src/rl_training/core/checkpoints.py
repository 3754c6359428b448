"""Checkpoints: one file per saved step, complete or absent, that cannot run code when it is loaded.

A checkpoint is a nested dict with string keys. Its leaves are torch tensors, numpy arrays, numbers, strings,
booleans and `None`; lists and tuples come back as lists, numpy scalars as Python numbers. The bytes are
described in `checkpoint_format`.
"""

import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from rl_training.core.algorithms import ALGORITHMS
from rl_training.core.atomic import reason, replace_file
from rl_training.core.checkpoint_format import (
    FILE_START,
    METADATA_KEY,
    decode,
    encode,
    write_safetensors,
)
from rl_training.core.errors import CheckpointError
from rl_training.core.json_text import parse_json
from rl_training.core.places import CHECKPOINT_FOLDER
from rl_training.core.plain import Facts, State
from rl_training.core.run_state import check_run_state

FORMAT_VERSION = 2
BEST_NAME = "best.safetensors"
_STEP_NAME = re.compile(r"step_([0-9]+)\.safetensors")


def save_checkpoint(path: str | Path, state: Facts) -> None:
    """Write `state` and the format version to `path`; an earlier file is replaced in the last moment.

    A state that came from a file keeps the version of that file.
    """
    text, arrays = encode({"format_version": FORMAT_VERSION, **state})
    try:
        with replace_file(Path(path)) as file:
            write_safetensors(file, text, arrays)
    except OSError as problem:
        raise CheckpointError(
            f"cannot save checkpoint {path}: {reason(problem)}; earlier checkpoints are unchanged, "
            "free space or choose another directory and resume from the newest one"
        ) from problem


def load_checkpoint(
    path: str | Path, device: str | torch.device = "cpu", *, skip: Collection[str] = ()
) -> State:
    """Read a checkpoint, or the newest one of a run directory, with its tensors on `device`.

    Top-level keys in `skip` are left out and never read from the disk: a policy needs no replay rows.
    """
    return _read(resolve_checkpoint(path), torch.device(device), skip)


def load_run_state(
    path: str | Path, device: str | torch.device = "cpu", *, skip: Collection[str] = ()
) -> State:
    """`load_checkpoint` of a run; one of an earlier file format comes as today's version would write it."""
    file = resolve_checkpoint(path)
    header = read_header(file)
    if "algo" not in header:
        raise CheckpointError(_foreign(file))
    if header["format_version"] == FORMAT_VERSION:
        check_run_state(header, file)
        return load_checkpoint(file, device, skip=skip)
    needed_to_upgrade = {"learner", "callbacks"}
    old = load_checkpoint(file, device, skip=set(skip) - needed_to_upgrade)
    try:
        state = ALGORITHMS.get(old["algo"]).upgrade(old)
    except (KeyError, TypeError, AttributeError, IndexError) as problem:
        raise CheckpointError(_damaged(file)) from problem
    check_run_state(state, file)
    return {key: value for key, value in state.items() if key not in skip}


def read_header(path: str | Path) -> State:
    """Everything of a checkpoint but its tensors, which appear as `None`."""
    return _read(resolve_checkpoint(path), None, ())


def strip_subtree(path: str | Path, key: str) -> None:
    """Rewrite a checkpoint without one top-level key; a file that does not have it is left alone."""
    if key in read_header(path):
        save_checkpoint(path, load_checkpoint(path, skip=(key,)))


def checkpoint_path(run_dir: str | Path, step: int) -> Path:
    """Where a run keeps the checkpoint of a step."""
    return Path(run_dir) / CHECKPOINT_FOLDER / f"step_{step}.safetensors"


def best_checkpoint_path(run_dir: str | Path) -> Path:
    """Where a run keeps the checkpoint of its best evaluation."""
    return Path(run_dir) / CHECKPOINT_FOLDER / BEST_NAME


def list_checkpoints(run_dir: str | Path) -> list[Path]:
    """The step checkpoints of a run directory (or of its checkpoint folder), oldest first."""
    folder = Path(run_dir) / CHECKPOINT_FOLDER
    if not folder.is_dir():
        folder = Path(run_dir)
    if not folder.is_dir():
        return []
    named = [(match, file) for file in folder.iterdir() if (match := _STEP_NAME.fullmatch(file.name))]
    return [file for _, file in sorted((int(match[1]), file) for match, file in named)]


def newest_checkpoint(run_dir: str | Path) -> Path | None:
    """The checkpoint with the highest step, or `None` where a run has not saved any yet."""
    return next(reversed(list_checkpoints(run_dir)), None)


def resolve_checkpoint(path: str | Path) -> Path:
    """The file meant by a path that names a checkpoint, a run directory or its checkpoint folder."""
    path = Path(path)
    if path.is_file():
        return path
    if not path.is_dir():
        raise CheckpointError(
            f"checkpoint {path} does not exist; give a .safetensors file or a run directory"
        )
    newest = newest_checkpoint(path)
    if newest is None:
        raise CheckpointError(
            f"{path} holds no step_<n>.safetensors; give a checkpoint file or a run directory that has one"
        )
    return newest


def prune_checkpoints(run_dir: str | Path, keep: int) -> list[Path]:
    """Delete all step checkpoints but the newest `keep` and return what was deleted; the best one stays."""
    if keep < 1:
        raise ValueError(f"keep must be >= 1, got {keep}")
    deleted = list_checkpoints(run_dir)[:-keep]
    for path in deleted:
        path.unlink(missing_ok=True)
    return deleted


def _read(path: Path, device: torch.device | None, skip: Collection[str]) -> State:
    """The state in a file; without a device its tensors are not read."""
    try:
        with safe_open(path, framework="pt") as file:
            tree = _parse_header(path, file.metadata())

            def fetch(name: str, kind: str) -> Any:
                if device is None:
                    return None
                # The library maps the file into memory: copy, so that nothing depends on the file afterwards.
                tensor = file.get_tensor(name).clone()
                return tensor.numpy() if kind == "numpy" else tensor.to(device)

            state: State = decode({key: tree[key] for key in tree if key not in skip}, fetch)
            return state
    except CheckpointError:
        raise
    except OSError as problem:
        raise CheckpointError(f"cannot read checkpoint {path}: {reason(problem)}") from problem
    except SafetensorError as problem:
        raise CheckpointError(_describe_unreadable(path)) from problem
    except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as problem:
        raise CheckpointError(_damaged(path)) from problem


def _parse_header(path: Path, metadata: Mapping[str, str] | None) -> State:
    if metadata is None or METADATA_KEY not in metadata:
        raise CheckpointError(_foreign(path))
    tree = parse_json(metadata[METADATA_KEY])
    version = tree.get("format_version") if isinstance(tree, dict) else None
    if not isinstance(version, int) or version < 1:
        raise CheckpointError(_damaged(path))
    if version > FORMAT_VERSION:
        raise CheckpointError(
            f"checkpoint {path} was written by a newer version of rl_training (file format {version}, "
            f"this version reads up to {FORMAT_VERSION}); upgrade rl_training"
        )
    return dict(tree)


def _describe_unreadable(path: Path) -> str:
    """What is wrong with a file that the safetensors library refuses, judged by its size and first bytes."""
    size = path.stat().st_size
    if size == 0:
        return f"checkpoint {path} is empty; use another checkpoint of the run"
    with path.open("rb") as file:
        start = file.read(8 + len(FILE_START))[8:]
    if size > 8 and not FILE_START.startswith(start):
        return _foreign(path)
    return f"checkpoint {path} is truncated or damaged ({size} bytes); use another checkpoint of the run"


def _foreign(path: Path) -> str:
    return (
        f"{path} is not a checkpoint of rl_training; give a .safetensors file that a training run has saved"
    )


def _damaged(path: Path) -> str:
    return f"checkpoint {path} is damaged: its header makes no sense; use another checkpoint of the run"
