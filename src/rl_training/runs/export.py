"""Write a policy file and its model card, with a guard if wanted: whole and checked, or not at all."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from rl_training.config.data import OfflineDataFields
from rl_training.core.errors import CheckpointError, ConfigError, DataError, UserError
from rl_training.core.files import reason, replace_file, write_text_atomic
from rl_training.core.spaces import FloatArray, Spaces
from rl_training.core.streams import torch_generator
from rl_training.core.transforms import ObservationNormalizer
from rl_training.core.types import Array, Facts
from rl_training.data.convert import read_location, source_location
from rl_training.data.offline_dataset import TransitionDataset
from rl_training.data.prepare import check_dimensions
from rl_training.data.splits import split_episodes
from rl_training.judging.verdict import DialCurve
from rl_training.policies.acting import NOTHING_CHOSEN, Acting, known_rows
from rl_training.policies.export.card import DialValue, model_card
from rl_training.policies.export.program import Program
from rl_training.policies.export.trace import trace_policy
from rl_training.policies.guard import middle_action
from rl_training.policies.guard_fitting import Guard, GuardConfig, fit_guard
from rl_training.policies.inputs import Given, SignalMemory
from rl_training.policies.opened import (
    ACTION,
    GUARDED,
    NEXT_STATE,
    DeployedPolicy,
    FileInputs,
    describe_policy,
)
from rl_training.policies.policy import Policy, policy_of_state
from rl_training.runs.directory import sister_scores
from rl_training.runs.judge import judge
from rl_training.runs.saved import SavedRun, acting_fields

DIALS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Positions among which `auto` chooses."""

OWN_DATA = "run"
"""Stands for the data that a run was trained on, where a path could stand as well."""

USUAL, LEAST_CHANGE = 0.9, 0.01
"""Share of the log's steps in which actions changed by no more than a guard allows; and the least that it
allows, as a share of the range."""

ROUNDING = 1e-6
"""Share of the bounds by which the mean of float32 actions may lie outside of them."""

GuardData = str | Sequence[str] | TransitionDataset
"""`"run"`, paths, or rows in memory."""


def make_guard(
    data: GuardData, run: SavedRun, spaces: Spaces, settings: Mapping[str, object] | None = None
) -> Guard:
    """A guard for the policy of a run."""
    config = GuardConfig.build(settings or {}, where="guard")
    widest = np.subtract(spaces.action_high, spaces.action_low).tolist()
    config.chosen_fallback(middle_action(spaces), widest).check(spaces)  # before anything is read
    unsaid = ["action"] if config.fallback_action is None else []
    unsaid += ["rate"] if config.fallback == "rate" and config.fallback_rate is None else []
    if unsaid and _has_other_units(run):
        raise ConfigError(
            f"guard.fallback_{unsaid[0]} must be given: this run mapped the range of its actions to the "
            "bounds (out_of_bounds: rescale), so that those of the log are not in the policy's units"
        )
    if isinstance(data, TransitionDataset):
        return guard_of_rows([data], spaces, config)
    names = [data] if isinstance(data, str) else list(data)
    return guard_of_rows([part for name in names for part in _read(name, run)], spaces, config)


def guard_of_rows(parts: Sequence[TransitionDataset], spaces: Spaces, config: GuardConfig) -> Guard:
    """The limit comes from episodes (rows, where these are unknown) that the centres are not fitted to."""
    parts = [check_dimensions(part, spaces) for part in parts]
    pairs = [_split(part, config) for part in parts]
    training, held_out = (torch.cat(side) for side in zip(*pairs, strict=True))
    source = " + ".join(dict.fromkeys(part.info.source for part in parts))
    first = _mean_action(parts, spaces) if config.fallback_action is None else config.fallback_action
    change = None
    if config.fallback == "rate" and config.fallback_rate is None:
        change = usual_change(parts, spaces)
    return fit_guard(training, held_out, config, spaces, source, first, change)


def usual_change(parts: Sequence[TransitionDataset], spaces: Spaces) -> tuple[float, ...]:
    """How far actions go in a step of a log that is large for it, and never nothing; 0 for a choice.

    An action that is held is no rest for a plant that needs a hand on it: it leads further away, and a guard
    would hold on for ever. One that goes on this slowly comes back.
    """
    changes = []
    for part in parts:
        if not part.ordered:
            raise ConfigError(
                f"guard.fallback_rate must be given: the rows of {part.info.source} are in no order that "
                "would say how far actions go in a step"
            )
        actions = part.actions.reshape(len(part), -1).double().cpu().numpy()
        changes.append(np.abs(np.diff(actions, axis=0))[~part.episode_ends("auto")[:-1]])
    steps = np.concatenate([*changes, np.zeros((1, spaces.action_columns))])
    usual, most = np.quantile(steps, USUAL, axis=0), steps.max(axis=0)
    least = LEAST_CHANGE * np.subtract(spaces.action_high, spaces.action_low)
    found = np.maximum(np.where(usual > 0.0, usual, most), least)
    chosen = [choice is not None for choice in spaces.choices] or [False] * spaces.action_columns
    return tuple(np.where(chosen, 0.0, found).tolist())


def _mean_action(parts: Sequence[TransitionDataset], spaces: Spaces) -> tuple[float, ...]:
    """Of all rows, of a choice the level taken most often; outside the bounds it is no action of this policy,
    and says nothing about a safe one.
    """
    rows = torch.cat([part.actions.reshape(len(part), -1).double().cpu() for part in parts])
    chosen = torch.tensor([choice is not None for choice in spaces.choices] or [False] * rows.shape[1])
    mean = torch.where(chosen, rows.mode(0).values, rows.mean(0))
    low, high = (torch.tensor(bound, dtype=mean.dtype) for bound in (spaces.action_low, spaces.action_high))
    inside = mean.clamp(low, high)
    if not ((mean - inside).abs() <= ROUNDING * (high - low)).all():
        raise DataError(
            f"{parts[0].info.source}: the mean action {mean.tolist()} must lie inside the policy's bounds to "
            "be what a guard falls back to first; set fallback_action"
        )
    return tuple(inside.tolist())


def _split(part: TransitionDataset, config: GuardConfig) -> tuple[Tensor, Tensor]:
    if part.ordered and int(part.episode_ends().sum()) > 1:
        first, second = split_episodes(part, config.held_out_share, config.seed)
        return _points(first, config.actions), _points(second, config.actions)
    points = _points(part, config.actions)
    order = torch.randperm(len(points), generator=torch_generator(config.seed, "guard", "held-out rows"))
    held = max(1, round(config.held_out_share * len(points)))
    return points[order[held:]], points[order[:held]]


def _points(part: TransitionDataset, with_actions: bool) -> Tensor:
    """Rows in the user's units, as a policy sees and acts."""
    columns = [part.obs, part.actions] if with_actions else [part.obs]
    points = torch.cat([each.reshape(len(part), -1).float().cpu() for each in columns], dim=-1)
    if not points.isfinite().all():
        raise DataError(f"{part.info.source}: a guard needs finite numbers, some are NaN or infinite")
    return points


def _read(name: str, run: SavedRun) -> list[TransitionDataset]:
    """Columns mean what they mean in the run's own data."""
    if name != OWN_DATA:
        log = read_location(source_location(name), fields=run.table_fields)
        return [TransitionDataset.from_log(log)]
    if run.data_name is None:
        raise ConfigError(
            "guard must name its data (a file, a folder, or a dataset in Python): this run has none of "
            "its own to go back to"
        )
    return run.data_parts


def _has_other_units(run: SavedRun) -> bool:
    return isinstance(run.settings, OfflineDataFields) and run.settings.out_of_bounds == "rescale"


# ---- the file itself

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
    dial: float | Literal["auto"] | None = None,
    limit: float | None = None,
) -> Path:
    """Export the policy of a checkpoint or run directory; returns the file.

    `guard` names the data of a guard: `"run"` for that of the run, or paths. `dial` is where the dial of the
    file stands if nobody turns it; `"auto"` asks a judgement by the run's own data. `limit` is what a policy
    that takes one keeps if nobody gives another.
    """
    checked_format(Path(out), format)
    run = SavedRun(checkpoint)
    policy = policy_of_state(run.state, source=run.file)
    try:  # what a file left out has its default
        state = {**run.state, "config": acting_fields(run.facts.config)[0].to_dict()}
    except UserError as problem:
        raise CheckpointError(f"{run.file}: {problem}") from problem
    curve = None
    if dial == "auto":
        curve, dial = curve_of_the_judge(run)
    if dial is not None:
        policy = policy.with_inputs(dial=dial)
    if limit is not None:
        policy = policy.with_inputs(limit=limit)
    if guard is not None:
        policy.guard = make_guard(guard, run, policy.spaces, guard_settings)
    elif guard_settings:
        raise UserError("guard settings need --guard DATA (guard=… in Python)")
    return export_policy(
        policy, state, out, format=format, distribution=distribution, run_dir=run.run_dir, curve=curve
    )


def curve_of_the_judge(run: SavedRun) -> tuple[DialCurve, float]:
    """Value against dial by the run's own data, and the position that is recommended."""
    (curve,) = judge(run, dial=DIALS).dials
    if curve.recommended is None:
        raise UserError(
            f"dial auto found no position that passes the judge's checks for {run.path}; see `rl-training "
            f"judge {run.path} --dial {','.join(f'{each:g}' for each in DIALS)}`, or give a number"
        )
    return curve, curve.recommended


def export_policy(
    policy: Policy,
    state: Facts,
    out: str | Path,
    *,
    format: str | None = None,
    distribution: bool = False,
    run_dir: Path | None = None,
    curve: DialCurve | None = None,
) -> Path:
    """Write `out` and its card, `out` + `.md`, once the actions are known to equal the policy's.

    `curve` is what was judged of positions of its dial, for the card.
    """
    target = Path(out)
    chosen = checked_format(target, format)
    program = trace_policy(policy, distribution=distribution)
    metadata = describe_policy(state, policy, program, None if run_dir is None else run_dir.name)
    encode, decode = codec(chosen)
    content = encode(policy, program, metadata)
    compute = decode(content, metadata)
    if policy.memory is not None:
        check_same_steps(policy, compute, FileInputs.of(metadata), target)
    else:
        check_same_actions(policy, compute, target)
    if policy.guard is not None and policy.memory is None:
        check_same_novelty(policy, compute, target)
    try:
        with replace_file(target) as file:
            file.write(content)
    except OSError as problem:
        raise UserError(
            f"cannot write {target}: {reason(problem)}; name a place you can write to"
        ) from problem
    seeds = [] if run_dir is None else sister_scores(run_dir)
    dials = [
        DialValue(each.dial, each.value, each.low, each.high, each.verdict)
        for each in (() if curve is None else curve.positions)
    ]
    card = model_card(metadata, target.name, chosen, seeds, dials)
    write_text_atomic(target.with_name(target.name + ".md"), card)
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


Compute = Callable[..., Mapping[str, FloatArray]]
"""Observations, and the policy's inputs by name -> outputs by name."""
Encode = Callable[[Policy, Program, Facts], bytes]
Decode = Callable[[bytes, Facts], Compute]


def codec(format: str) -> tuple[Encode, Decode]:
    """How a format is written, and how its bytes act: libraries are imported for the format in use only."""
    if format == "onnx":
        from rl_training.policies.export import onnx

        return (
            lambda policy, program, metadata: onnx.onnx_bytes(program, metadata),
            lambda content, _: named_outputs(onnx.open_onnx(content, Path("policy.onnx"))),
        )
    if format == "torchscript":
        from rl_training.policies.export import torchscript as script

        return (
            lambda policy, program, metadata: script.torchscript_bytes(policy, metadata),
            lambda content, metadata: script.torchscript_outputs(content, metadata["outputs"]),
        )
    from rl_training.policies.export import numpy as light

    return (
        lambda policy, program, metadata: light.light_policy_bytes(program, metadata),
        lambda content, metadata: named_outputs(light.open_light(content, metadata)),
    )


def named_outputs(policy: DeployedPolicy) -> Compute:
    names: tuple[str, ...] = ACTION if policy.guard_facts is None else GUARDED
    if policy.memory is not None:
        names = tuple(policy.widths)

    def compute(obs: FloatArray, inputs: Given = NOTHING_CHOSEN) -> dict[str, FloatArray]:
        return dict(zip(names, policy.compute(obs, names, inputs), strict=True))

    return compute


def check_same_actions(policy: Policy, compute: Compute, target: Path) -> None:
    """Refuse to ship a file that acts otherwise than the policy it was made from."""
    obs, inputs, spaces = checked_observations(policy), checked_inputs(policy), policy.spaces
    half = (np.array(spaces.action_high) - np.array(spaces.action_low)) / 2.0
    own = policy.spaces.in_numbers(policy.predict(obs, True, **inputs))
    refuse_difference(np.abs(compute(obs, inputs)["action"] - own) / half, "actions", target)


def check_same_novelty(policy: Policy, compute: Compute, target: Path) -> None:
    """The same for the guard, as a share of the novelty itself where that is beyond the limit."""
    obs, inputs = checked_observations(policy), checked_inputs(policy)
    own = policy.predict_guarded(obs, **inputs).novelty.astype(np.float64)
    found = compute(obs, inputs)["novelty"][:, 0]
    refuse_difference(np.abs(found - own) / np.maximum(own, 1.0), "novelty", target)


def check_same_steps(policy: Policy, compute: Compute, inputs: FileInputs, target: Path) -> None:
    """The same of a policy with a past: step by step, with episodes that begin in between."""
    rows, spaces = 4, policy.spaces
    live, filed = (Acting(spaces, memory, rows) for memory in (policy.memory, inputs.memory))
    half = (np.array(spaces.action_high) - np.array(spaces.action_low)) / 2.0
    for step, obs in enumerate(checked_observations(policy).reshape(-1, rows, spaces.obs_dim)):
        asked, table = live.features(obs).astype(np.float32), filed.features(obs)
        known = known_rows(table)
        asked, table = (np.where(known[:, None], each, 0.0) for each in (asked, table))
        found, own = compute(table), policy.act(asked)
        refuse_difference(np.abs(found["action"] - own) / half, "actions", target)
        if NEXT_STATE in found:
            wanted = np.where(known[:, None], live.after[0], found[NEXT_STATE])
            apart = np.abs(found[NEXT_STATE] - wanted) / np.maximum(1.0, np.abs(wanted))
            refuse_difference(apart, "states", target)
        if policy.guard is not None:
            far = policy.act_with_novelty(asked.astype(np.float32))[1][:, 0]
            apart = np.abs(found["novelty"][:, 0] - far) / np.maximum(far, 1.0)
            refuse_difference(apart, "novelty", target)
        for each in (live, filed):
            each.follow(own)
            each.reset(rows=np.arange(rows) == step % (2 * rows))


def checked_inputs(policy: Policy) -> dict[str, FloatArray]:
    """Every input over its whole range."""
    draws = np.random.default_rng(1)
    return {
        each.name: draws.uniform(each.low, each.high, (CHECKED_ROWS, 1)).astype(np.float32)
        for each in policy.inputs
    }


def checked_observations(policy: Policy) -> FloatArray:
    """Observations near the data of the policy, and a thousand times as far."""
    spaces = policy.spaces
    obs: FloatArray = np.random.default_rng(0).normal(size=(CHECKED_ROWS, spaces.obs_dim)).astype(np.float32)
    obs[CHECKED_ROWS // 2 :] *= 1000.0
    if isinstance(policy.memory, SignalMemory):  # in the units of what is seen, where that is a signal too
        places = policy.memory.program.plain_places
        for step in policy.observation_steps:
            if isinstance(step, ObservationNormalizer) and places:
                std, mean = (each.cpu().numpy().astype(np.float32)[places] for each in (step.std, step.mean))
                obs = obs * std + mean
        return obs
    if policy.guard is not None:
        numbers = (policy.guard.scale, policy.guard.mean)
        scale, mean = (each[: spaces.obs_dim].cpu().numpy().astype(np.float32) for each in numbers)
        return obs * scale + mean
    for step in policy.observation_steps:
        if isinstance(step, ObservationNormalizer):
            obs = obs * step.std.cpu().numpy().astype(np.float32) + step.mean.cpu().numpy().astype(np.float32)
    return obs


def refuse_difference(shares: Array, what: str, target: Path) -> None:
    worst = float(shares.max())
    if not worst <= TOLERANCE:
        raise UserError(
            f"{target} was not written: its {what} differ from the policy's by {worst:.1e} "
            f"of their range, more than {TOLERANCE:g}"
        )
