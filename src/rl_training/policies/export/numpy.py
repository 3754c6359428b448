"""The safetensors policy file, evaluated with numpy alone: named arrays and one JSON text.

The file cannot hold code, and it is read by the safetensors library, which checks untrusted offsets. No
buffers are kept between calls: arrays of one row cost a microsecond, and one object serves many threads.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load, save

from rl_training.core.errors import UserError
from rl_training.core.spaces import FloatArray
from rl_training.core.types import Array, Facts
from rl_training.policies.acting import NOTHING_CHOSEN
from rl_training.policies.export.program import Program, constants_of, refuse_large
from rl_training.policies.inputs import Given
from rl_training.policies.opened import (
    ACTION,
    DISTRIBUTION,
    GUARDED,
    METADATA_KEY,
    DeployedPolicy,
    FileInputs,
    damaged,
    parse_metadata,
)


class LightPolicy(DeployedPolicy):
    """The program, one numpy call per operation, in float64 as the live policy acts."""

    def __init__(self, program: Program, metadata: Facts) -> None:
        super().__init__(metadata)
        self.program = program.in_double()
        asked: tuple[tuple[str, ...], ...] = (ACTION, DISTRIBUTION, GUARDED, tuple(self.widths))
        self.parts = {names: self.program.only(names) for names in asked}

    def compute(
        self, obs: FloatArray, names: tuple[str, ...], inputs: Given = NOTHING_CHOSEN
    ) -> list[FloatArray]:
        """What is not asked for is not computed."""
        part = self.parts[names]
        values = part.run_all(**self.file_inputs.given(obs, inputs))
        return [values[part.outputs[name]] for name in names]


def light_policy_bytes(program: Program, metadata: Facts) -> bytes:
    """The whole file."""
    return save(dict(program.constants), {METADATA_KEY: json.dumps(metadata)})


def open_light(content: bytes, metadata: Facts) -> LightPolicy:
    """A policy from the bytes of a file that was just made."""
    inputs = tuple(FileInputs.of(metadata).widths)[1:]
    return LightPolicy(Program.restore(metadata["program"], load(content), inputs), metadata)


def read_policy_file(path: Path) -> LightPolicy:
    """Open a policy file; anything else is refused with what it seems to be."""
    try:
        with safe_open(path, framework="numpy") as file:
            header = file.metadata() or {}
            if METADATA_KEY not in header:
                raise UserError(
                    f"{path} is not a policy file of rl_training; give one that `rl-training export` has "
                    "written, a checkpoint or a run directory"
                )
            metadata = parse_metadata(header[METADATA_KEY], path)
            arrays = {name: _number(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118
        if metadata["format_version"] == 1:
            arrays |= constants_of(metadata)
        inputs = FileInputs.of(metadata).widths
        program = Program.restore(metadata["program"], arrays, tuple(inputs)[1:])
        shapes = {name: values.shape for name, values in arrays.items()}
        refuse_large(
            ((node.operation, node.inputs, node.output) for node in program.nodes),
            shapes,
            inputs,
        )
        policy = LightPolicy(program, metadata)
        check_numbers(policy)
        return policy
    except UserError as problem:
        if str(path) in str(problem):
            raise
        raise damaged(path, problem) from None
    except OSError as problem:
        raise UserError(f"cannot read policy {path}: {problem.strerror or problem}") from problem
    except SafetensorError as problem:
        raise UserError(
            f"{path} is not a safetensors file, or it is damaged; export the policy again"
        ) from problem
    except (KeyError, ValueError, TypeError, AttributeError, IndexError, OverflowError) as problem:
        raise damaged(path, "its parts do not fit together") from problem


def check_numbers(policy: LightPolicy) -> None:
    """They must be sound, and two observations must give two of every output that the metadata speaks of."""
    for name, values in policy.program.constants.items():
        if not np.isfinite(values).all():
            raise UserError(f"{name} holds NaN or infinity")
    widths, size = policy.widths, policy.spaces
    nothing = np.zeros((2, policy.file_inputs.asked_dim), dtype=np.float32)
    found = policy.program.run_all(**policy.file_inputs.given(nothing, NOTHING_CHOSEN))
    for name, at in policy.program.outputs.items():
        width, values = widths.get(name, size.action_columns), found[at]
        if values.shape != (2, width) or not np.isfinite(values).all():
            raise UserError(
                f"{name} must have {width} numbers for an observation, got shape {values.shape[1:]}"
            )
    if policy.program.outputs.keys() != widths.keys():
        raise UserError("its program does not fit its metadata")


def _number(values: npt.ArrayLike) -> Array:
    array = np.asarray(values)
    if array.dtype not in (np.float32, np.float64):
        raise ValueError(f"numbers must be floats, got {array.dtype}")
    return array
