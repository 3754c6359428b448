"""Write a policy file and its model card: whole and checked, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping
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
from rl_training.experiment.guarding import GuardData, make_guard
from rl_training.experiment.seed_scores import sister_scores
from rl_training.policies.deployed import ACTION, GUARDED, DeployedPolicy
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
    checkpoint: str | Path,
    out: str | Path,
    *,
    format: str | None = None,
    distribution: bool = False,
    guard: GuardData | None = None,
    guard_settings: Facts | None = None,
) -> Path:
    """Export the policy of a checkpoint or run directory; returns the file.

    `guard` names the data of a guard: `"run"` for that of the run, or paths.
    """
    checked_format(Path(out), format)
    file = resolve_checkpoint(checkpoint)
    state = load_run_state(file, skip=NOT_FOR_ACTING)
    run_dir = file.parent.parent if file.parent.name == CHECKPOINT_FOLDER else None
    policy = policy_of_state(state, source=file)
    if guard is not None:
        policy.guard = make_guard(guard, state, policy.spaces, guard_settings)
    elif guard_settings:
        raise UserError("guard settings need --guard DATA (guard=… in Python)")
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
    compute = decode(content, metadata)
    check_same_actions(policy, lambda obs: compute(obs)["action"], target)
    if policy.guard is not None:
        check_same_novelty(policy, lambda obs: compute(obs)["novelty"][:, 0], target)
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
Compute = Callable[[FloatArray], Mapping[str, FloatArray]]
Encode = Callable[[Policy, Program, Facts], bytes]
Decode = Callable[[bytes, Facts], Compute]


def codec(format: str) -> tuple[Encode, Decode]:
    """How a format is written, and how its bytes act: libraries are imported for the format in use only."""
    if format == "onnx":
        from rl_training.policies import onnx_export, onnx_policy

        return (
            lambda policy, program, metadata: onnx_export.onnx_bytes(program, metadata),
            lambda content, _: named_outputs(onnx_policy.open_onnx(content, Path("policy.onnx"))),
        )
    if format == "torchscript":
        from rl_training.policies import torchscript_export as script

        return (
            lambda policy, program, metadata: script.torchscript_bytes(policy, metadata),
            lambda content, metadata: (
                lambda obs: dict(
                    zip(metadata["outputs"], script.torchscript_outputs(content)(obs), strict=True)
                )
            ),
        )
    from rl_training.policies import light_policy as light

    return (
        lambda policy, program, metadata: light.light_policy_bytes(program, metadata),
        lambda content, metadata: named_outputs(light.open_light(content, metadata)),
    )


def named_outputs(policy: DeployedPolicy) -> Compute:
    names = ACTION if policy.guard_facts is None else GUARDED
    return lambda obs: dict(zip(names, policy.compute(obs, names), strict=True))


def check_same_actions(policy: Policy, act: Act, target: Path) -> None:
    """Refuse to ship a file that acts otherwise than the policy it was made from."""
    obs, spaces = checked_observations(policy), policy.spaces
    half = (np.array(spaces.action_high) - np.array(spaces.action_low)) / 2.0
    refuse_difference(float((np.abs(act(obs) - policy.predict(obs)) / half).max()), "actions", target)


def check_same_novelty(policy: Policy, novelty: Act, target: Path) -> None:
    """The same for the guard, as a share of the novelty itself where that is beyond the limit."""
    obs = checked_observations(policy)
    own = policy.predict_guarded(obs).novelty.astype(np.float64)
    refuse_difference(float((np.abs(novelty(obs) - own) / np.maximum(own, 1.0)).max()), "novelty", target)


def checked_observations(policy: Policy) -> FloatArray:
    """Observations near the data of the policy, and a thousand times as far."""
    spaces = policy.spaces
    obs: FloatArray = np.random.default_rng(0).normal(size=(CHECKED_ROWS, spaces.obs_dim)).astype(np.float32)
    obs[CHECKED_ROWS // 2 :] *= 1000.0
    if policy.guard is not None:
        numbers = (policy.guard.scale, policy.guard.mean)
        scale, mean = (each[: spaces.obs_dim].cpu().numpy().astype(np.float32) for each in numbers)
        return obs * scale + mean
    for step in policy.observation_steps:
        if isinstance(step, ObservationNormalizer):
            obs = obs * step.std.cpu().numpy().astype(np.float32) + step.mean.cpu().numpy().astype(np.float32)
    return obs


def refuse_difference(worst: float, what: str, target: Path) -> None:
    if not worst <= TOLERANCE:
        raise UserError(
            f"{target} was not written: its {what} differ from the policy's by {worst:.1e} "
            f"of their range, more than {TOLERANCE:g}"
        )
