"""Write a policy file and its model card: whole and checked, or not at all."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from rl_training.core.atomic import reason, replace_file, write_text_atomic
from rl_training.core.checkpoints import load_run_state, resolve_checkpoint
from rl_training.core.errors import UserError
from rl_training.core.places import CHECKPOINT_FOLDER
from rl_training.core.plain import Facts
from rl_training.core.spaces import FloatArray
from rl_training.core.transforms import ObservationNormalizer
from rl_training.experiment.seed_scores import sister_scores
from rl_training.policies.model_card import model_card
from rl_training.policies.policy import Policy
from rl_training.policies.policy_metadata import describe_policy
from rl_training.policies.program import Program
from rl_training.policies.saved import NOT_FOR_ACTING, policy_of_state
from rl_training.policies.tracing import trace_policy

SUFFIXES = {"safetensors": ".safetensors", "onnx": ".onnx", "torchscript": ".pt"}
CHECKED_ROWS = 256
TOLERANCE = 1e-5
"""Largest difference to the live policy, as a share of an action's half width. Both compute in float64 and
usually agree to the last bit of a float32 action; a wrong graph does not."""


def export_checkpoint(
    checkpoint: str | Path, out: str | Path, *, format: str | None = None, distribution: bool = False
) -> Path:
    """Export the policy of a checkpoint or run directory; returns the file."""
    file = resolve_checkpoint(checkpoint)
    state = load_run_state(file, skip=NOT_FOR_ACTING)
    run_dir = file.parent.parent if file.parent.name == CHECKPOINT_FOLDER else None
    policy = policy_of_state(state, source=file)
    return export_policy(policy, state, out, format=format, distribution=distribution, run_dir=run_dir)


def export_policy(
    policy: Policy,
    state: Facts,
    out: str | Path,
    *,
    format: str | None = None,
    distribution: bool = False,
    run_dir: Path | None = None,
) -> Path:
    """Write `out` and its card, `out` + `.md`, once the actions are known to equal the policy's."""
    target = Path(out)
    chosen = checked_format(target, format)
    program = trace_policy(policy, distribution=distribution)
    metadata = describe_policy(state, policy, program, None if run_dir is None else run_dir.name)
    encode, decode = codec(chosen)
    content = encode(policy, program, metadata)
    check_same_actions(policy, decode(content, metadata), target)
    try:
        with replace_file(target) as file:
            file.write(content)
    except OSError as problem:
        raise UserError(
            f"cannot write {target}: {reason(problem)}; name a place you can write to"
        ) from problem
    seeds = [] if run_dir is None else sister_scores(run_dir)
    write_text_atomic(target.with_name(target.name + ".md"), model_card(metadata, target.name, chosen, seeds))
    return target


def checked_format(out: Path, format: str | None) -> str:
    """The format that was asked for, or the one that the file name says."""
    by_suffix = {suffix: name for name, suffix in SUFFIXES.items()}
    if format is None and out.suffix in by_suffix:
        return by_suffix[out.suffix]
    known = ", ".join(f"{name} ({suffix})" for name, suffix in SUFFIXES.items())
    if format is None:
        raise UserError(f"out must end in the suffix of a format: {known}, got {str(out)!r}")
    if format not in SUFFIXES:
        raise UserError(f"format must be one of {known}, got {format!r}")
    if out.suffix != SUFFIXES[format]:
        raise UserError(f"out must end in {SUFFIXES[format]} for format {format}, got {str(out)!r}")
    return format


Act = Callable[[FloatArray], Any]
Encode = Callable[[Policy, Program, Facts], bytes]
Decode = Callable[[bytes, Facts], Act]


def codec(format: str) -> tuple[Encode, Decode]:
    """How a format is written, and how its bytes act: libraries are imported for the format in use only."""
    if format == "onnx":
        from rl_training.policies import onnx_export, onnx_policy

        return (
            lambda policy, program, metadata: onnx_export.onnx_bytes(program, metadata),
            lambda content, _: onnx_policy.open_onnx(content, Path("policy.onnx")).predict,
        )
    if format == "torchscript":
        from rl_training.policies import torchscript_export as script

        return (
            lambda policy, program, metadata: script.torchscript_bytes(policy, metadata),
            lambda content, _: script.open_torchscript(content),
        )
    from rl_training.policies import light_policy as light

    return (
        lambda policy, program, metadata: light.light_policy_bytes(program, metadata),
        lambda content, metadata: light.open_light(content, metadata).predict,
    )


def check_same_actions(policy: Policy, act: Act, target: Path) -> None:
    """Refuse to ship a file that acts otherwise than the policy it was made from."""
    spaces = policy.spaces
    obs = np.random.default_rng(0).normal(size=(CHECKED_ROWS, spaces.obs_dim)).astype(np.float32)
    obs[CHECKED_ROWS // 2 :] *= 1000.0
    for step in policy.observation_steps:
        if isinstance(step, ObservationNormalizer):
            obs = obs * step.std.cpu().numpy().astype(np.float32) + step.mean.cpu().numpy().astype(np.float32)
    half = (np.array(spaces.action_high) - np.array(spaces.action_low)) / 2.0
    worst = float((np.abs(act(obs) - policy.predict(obs)) / half).max())
    if not worst <= TOLERANCE:
        raise UserError(
            f"{target} was not written: its actions differ from the policy's by {worst:.1e} "
            f"of their range, more than {TOLERANCE:g}"
        )
