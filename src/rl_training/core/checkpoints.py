"""Checkpoints: one file per saved step, complete or absent, that cannot run code when it is loaded.

A nested dict becomes a safetensors file: tensors become its entries; everything else, and the place of every
tensor, is one JSON string in the metadata. The name of a tensor is its JSON pointer (RFC 6901) in that
string: `/learner/actor/weight`.

Reading goes through the safetensors library, which checks untrusted offsets. Writing is done here: the
library's writer leaves a randomly named file behind when it is killed, needs a whole copy of tensors that are
not contiguous or not on the CPU, and hides the operating system's error number.
"""

import json
import math
import re
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Protocol

import numpy as np
import torch
from safetensors import SafetensorError, safe_open

from rl_training.core.errors import CheckpointError
from rl_training.core.files import CHECKPOINT_FOLDER, parse_json, reason, replace_file
from rl_training.core.registry import ALGORITHMS
from rl_training.core.schema import TENSORS, RunFacts, run_facts
from rl_training.core.types import Facts, State

Array = torch.Tensor | np.ndarray[Any, Any]

METADATA_KEY = "rl_training"
# Follows the eight bytes of the header length in every file of ours: tells a cut file from a foreign one.
FILE_START = b'{"__metadata__":{"' + METADATA_KEY.encode() + b'":"'
# The safetensors library refuses to read longer headers.
MAX_HEADER_BYTES = 100_000_000
CHUNK_BYTES = 16 * 2**20

DTYPE_CODES = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
}


def encode(state: Mapping[str, object]) -> tuple[str, dict[str, Array]]:
    """Split a state into JSON text and tensors by name; a value of another type raises `TypeError`."""
    arrays: dict[str, Array] = {}
    tree = _encode(state, "", arrays)
    return json.dumps(tree, allow_nan=False, separators=(",", ":")), arrays


def decode(tree: Any, fetch: Callable[[str, str], object], pointer: str = "") -> Any:
    """Rebuild what `encode` took apart; `fetch(name, kind)` supplies a tensor of kind `torch` or `numpy`."""
    if isinstance(tree, list):
        return [decode(item, fetch, f"{pointer}/{index}") for index, item in enumerate(tree)]
    if not isinstance(tree, dict):
        return tree
    if tree.keys() == {"$tensor"}:
        return fetch(pointer, tree["$tensor"])
    if tree.keys() == {"$float"}:
        return float(tree["$float"])
    keys = {stored: stored.removeprefix("$") for stored in tree}
    return {key: decode(tree[stored], fetch, pointer + _segment(key)) for stored, key in keys.items()}


def _encode(value: object, pointer: str, arrays: dict[str, Array]) -> object:
    # `{"$tensor": kind}` and `{"$float": text}` stand for what JSON cannot say. A caller's key that starts
    # with `$` is stored with a second one, so the two never meet.
    if isinstance(value, torch.Tensor | np.ndarray):
        _check_array(value, pointer)
        arrays[pointer] = value
        return {"$tensor": "torch" if isinstance(value, torch.Tensor) else "numpy"}
    if isinstance(value, Mapping):
        tree = {}
        for key, item in value.items():
            if not isinstance(key, str):
                raise TypeError(f"cannot save {pointer or '/'}: its keys must be strings, got {key!r}")
            tree["$" + key if key.startswith("$") else key] = _encode(item, pointer + _segment(key), arrays)
        return tree
    if isinstance(value, list | tuple):
        return [_encode(item, f"{pointer}/{index}", arrays) for index, item in enumerate(value)]
    return _encode_scalar(value.item() if isinstance(value, np.generic) else value, pointer)


def _encode_scalar(value: object, pointer: str) -> object:
    if isinstance(value, float) and not math.isfinite(value):
        return {"$float": repr(value)}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"cannot save {pointer}: {type(value).__name__} is neither a tensor, an array nor JSON")


def _segment(key: str) -> str:
    return "/" + key.replace("~", "~0").replace("/", "~1")


def _check_array(value: Array, pointer: str) -> None:
    strided = isinstance(value, np.ndarray) or value.layout is torch.strided
    if not strided or _dtype_name(value) not in DTYPE_CODES:
        what = f"dtype {_dtype_name(value)}" if strided else "a sparse tensor"
        raise TypeError(
            f"cannot save {pointer}: {what} is not supported; use one of {', '.join(DTYPE_CODES)}"
        )


def _dtype_name(value: Array) -> str:
    return value.dtype.name if isinstance(value, np.ndarray) else str(value.dtype).removeprefix("torch.")


def write_safetensors(file: BinaryIO, text: str, arrays: Mapping[str, Array]) -> None:
    """Write the file in one pass, never holding more than a chunk of a tensor besides the tensor itself."""
    entries: dict[str, object] = {"__metadata__": {METADATA_KEY: text}}
    # Wide types first keeps every tensor aligned to its own size.
    ordered = sorted(arrays.items(), key=lambda entry: -entry[1].itemsize)
    offset = 0
    for name, value in ordered:
        end = offset + value.nbytes
        entries[name] = {
            "dtype": DTYPE_CODES[_dtype_name(value)],
            "shape": list(value.shape),
            "data_offsets": [offset, end],
        }
        offset = end
    header = json.dumps(entries, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % 8)
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"the JSON part takes {len(header)} bytes; keep long lists of numbers in arrays")
    file.write(struct.pack("<Q", len(header)))
    file.write(header)
    for _, value in ordered:
        for chunk in _byte_chunks(value):
            file.write(chunk)


def _byte_chunks(value: Array) -> Iterator[bytes]:
    """The bytes of a tensor in row-major order, whatever its device, layout and byte order."""
    if value.nbytes == 0:
        return
    rows = value if value.ndim else value.reshape(1)
    row_bytes = value.nbytes // len(rows)
    if row_bytes > CHUNK_BYTES:
        for row in rows:
            yield from _byte_chunks(row)
        return
    rows_per_chunk = CHUNK_BYTES // row_bytes
    for start in range(0, len(rows), rows_per_chunk):
        part = rows[start : start + rows_per_chunk]
        if isinstance(part, torch.Tensor):
            part = part.detach().cpu()
            # numpy has no bfloat16; the same bits as integers will do
            part = (part.view(torch.int16) if part.dtype is torch.bfloat16 else part).numpy()
        yield part.astype(part.dtype.newbyteorder("<"), copy=False).tobytes()


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


class TensorFile(Protocol):
    """An opened safetensors file."""

    def metadata(self) -> Mapping[str, str] | None: ...

    def get_tensor(self, name: str, /) -> torch.Tensor: ...


class Checkpoint:
    """A file, opened once, or the newest one of a run directory; its tensors are read when asked for.

    What is opened stays what it is: a run that goes on replaces its files, it does not write into them.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = resolve_checkpoint(path)
        with self._readable():
            file: TensorFile = safe_open(self.path, framework="pt")
            self._file = file
            self._tree = self._parse_header(file)

    @property
    def header(self) -> State:
        """Everything but the tensors, which appear as `None`."""
        with self._readable():
            header: State = decode(self._tree, lambda name, kind: None)
            return header

    def read(self, device: str | torch.device = "cpu", *, skip: Collection[str] = ()) -> State:
        """The state with its tensors on `device`.

        Top-level keys in `skip` are left out and never read from the disk: a policy needs no replay rows.
        """

        def fetch(name: str, kind: str) -> object:
            # The library maps the file into memory: copy, so that nothing depends on the file afterwards.
            tensor = self._file.get_tensor(name).clone()
            return tensor.numpy() if kind == "numpy" else tensor.to(device)

        with self._readable():
            state: State = decode({key: self._tree[key] for key in self._tree if key not in skip}, fetch)
            return state

    def read_run(self, device: str | torch.device = "cpu", *, skip: Collection[str] = ()) -> State:
        """The state of a run; one of an earlier file format comes as today's version would write it."""
        if self.facts.format_version == self._tree["format_version"]:
            return self.read(device, skip=skip)
        return {key: value for key, value in self._upgraded(device, skip).items() if key not in skip}

    @cached_property
    def facts(self) -> RunFacts:
        """What a run's checkpoint says of the run, checked; a file of something else is refused."""
        if "algo" not in self._tree:
            raise CheckpointError(_foreign(self.path))
        is_old = self._tree["format_version"] < FORMAT_VERSION
        return run_facts(self._upgraded("cpu", TENSORS) if is_old else self.header, self.path)

    def _upgraded(self, device: str | torch.device, skip: Collection[str]) -> State:
        needed_to_upgrade = {"learner", "callbacks"}
        old = self.read(device, skip=set(skip) - needed_to_upgrade)
        try:
            return ALGORITHMS.get(old["algo"]).upgrade(old)
        except (KeyError, TypeError, AttributeError, IndexError) as problem:
            raise CheckpointError(_damaged(self.path)) from problem

    @contextmanager
    def _readable(self) -> Iterator[None]:
        """Whatever is wrong with the file is told in one line."""
        path = self.path
        try:
            yield
        except CheckpointError:
            raise
        except OSError as problem:
            raise CheckpointError(f"cannot read checkpoint {path}: {reason(problem)}") from problem
        except SafetensorError as problem:
            raise CheckpointError(_describe_unreadable(path)) from problem
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as problem:
            raise CheckpointError(_damaged(path)) from problem

    def _parse_header(self, file: TensorFile) -> State:
        metadata = file.metadata()
        if metadata is None or METADATA_KEY not in metadata:
            raise CheckpointError(_foreign(self.path))
        tree = parse_json(metadata[METADATA_KEY])
        version = tree.get("format_version") if isinstance(tree, dict) else None
        if not isinstance(version, int) or version < 1:
            raise CheckpointError(_damaged(self.path))
        if version > FORMAT_VERSION:
            raise CheckpointError(
                f"checkpoint {self.path} was written by a newer version of rl_training (file format "
                f"{version}, this version reads up to {FORMAT_VERSION}); upgrade rl_training"
            )
        return dict(tree)


def load_checkpoint(
    path: str | Path, device: str | torch.device = "cpu", *, skip: Collection[str] = ()
) -> State:
    """`Checkpoint.read` of a file or run directory."""
    return Checkpoint(path).read(device, skip=skip)


def load_run_state(
    path: str | Path, device: str | torch.device = "cpu", *, skip: Collection[str] = ()
) -> State:
    """`Checkpoint.read_run` of a file or run directory."""
    return Checkpoint(path).read_run(device, skip=skip)


def read_header(path: str | Path) -> State:
    """Everything of a checkpoint but its tensors, which appear as `None`."""
    return Checkpoint(path).header


def strip_subtree(path: str | Path, key: str) -> None:
    """Rewrite a checkpoint without one top-level key; a file that does not have it is left alone."""
    checkpoint = Checkpoint(path)
    if key in checkpoint.header:
        save_checkpoint(path, checkpoint.read(skip=(key,)))


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
