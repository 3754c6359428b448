"""A nested dict as the bytes of a safetensors file, and back.

Tensors become safetensors entries. Everything else, and the place of every tensor, is one JSON string in the
metadata. The name of a tensor is its JSON pointer (RFC 6901) in that string: `/learner/actor/weight`.

Reading goes through the safetensors library, which checks untrusted offsets. Writing is done here: the
library's writer leaves a randomly named file behind when it is killed, needs a whole copy of tensors that are
not contiguous or not on the CPU, and hides the operating system's error number.
"""

import json
import math
import struct
from collections.abc import Callable, Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np
import torch

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


def encode(state: Mapping[str, Any]) -> tuple[str, dict[str, Array]]:
    """Split a state into JSON text and tensors by name; a value of another type raises `TypeError`."""
    arrays: dict[str, Array] = {}
    tree = _encode(state, "", arrays)
    return json.dumps(tree, allow_nan=False, separators=(",", ":")), arrays


def decode(tree: Any, fetch: Callable[[str, str], Any], pointer: str = "") -> Any:
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


def _encode(value: Any, pointer: str, arrays: dict[str, Array]) -> Any:
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


def _encode_scalar(value: Any, pointer: str) -> Any:
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
    entries: dict[str, Any] = {"__metadata__": {METADATA_KEY: text}}
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
