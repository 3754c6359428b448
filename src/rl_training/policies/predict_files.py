"""A policy over a file: observations in, actions out, in pieces, so that neither has to fit into memory."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

from rl_training.core.errors import UserError
from rl_training.core.feature_names import FeatureNames
from rl_training.core.plain import Array
from rl_training.core.spaces import FloatArray
from rl_training.policies.action_files import numbered, open_actions
from rl_training.policies.deployed import DeployedPolicy
from rl_training.policies.guarding import GuardedLoop, PredictsGuarded
from rl_training.policies.loading import is_policy_file, load_policy
from rl_training.policies.observation_files import Chunks, read_chunks
from rl_training.policies.policy import Policy
from rl_training.policies.saved import load_saved_policy


class Predicting(PredictsGuarded, Protocol):
    """What a live policy and an exported one have in common."""

    features: FeatureNames

    def predict(self, obs: npt.ArrayLike) -> FloatArray: ...


def predict_file(
    policy: Predicting,
    source: Path,
    target: Path,
    on_progress: Callable[[int, float], None] = lambda rows, share: None,
    chunks: Chunks | None = None,
) -> int:
    """Write the action of every observation in `source`, in order; returns how many there were.

    Of a policy with a guard, novelty and flag (0 or 1) follow the action, which is the fallback's where the
    guard has one: rows are taken as consecutive steps. `on_progress` is told the rows done and the share of
    the source that is read. `chunks` are its observations, where the caller knows better how to read it.
    """
    if target.exists() and source.exists() and target.samefile(source):
        raise UserError(f"--out must not be the file that is read, got {str(target)!r}")
    done = 0
    predict, names = predictor(policy)
    with open_actions(target, names) as write:
        for rows, share in read_chunks(source) if chunks is None else chunks:
            write(predict(checked_rows(rows, policy.spaces.obs_dim, source, done)))
            done += len(rows)
            on_progress(done, share)
        if not done:
            raise UserError(f"--obs-file {source} holds no observations")
    return done


def predictor(policy: Predicting) -> tuple[Callable[[FloatArray], FloatArray], list[str]]:
    """What is written of a policy for observations, and the names of these columns."""
    named, size = policy.features.actions, policy.spaces.action_dim
    names = list(named) if len(named) == size else numbered(size)
    if policy.guard_facts is None:
        return policy.predict, names
    loop = GuardedLoop(policy)

    def guarded_rows(obs: FloatArray) -> FloatArray:
        told = loop.act(obs)
        columns = (told.action, told.novelty[:, None], told.flagged[:, None])
        rows: FloatArray = np.concatenate(columns, axis=1, dtype=np.float32)
        return rows

    return guarded_rows, [*names, "novelty", "flagged"]


def checked_rows(rows: Array, size: int, source: Path, before: int) -> FloatArray:
    """The rows as float32; a bad one is named by its place in the whole file, counted from 1."""
    if rows.ndim != 2 or rows.shape[1] != size or rows.dtype.kind not in "biuf":
        raise UserError(
            f"--obs-file {source} must hold rows of {size} numbers, as this policy observes, "
            f"got shape {rows.shape} of {rows.dtype}"
        )
    with np.errstate(over="ignore"):  # too large for float32: found on the next line
        values: FloatArray = rows.astype(np.float32)
    finite = np.isfinite(values).all(axis=1)
    if not finite.all():
        row = before + int(np.argmin(finite)) + 1
        raise UserError(
            f"--obs-file {source} must hold finite numbers: observation {row} has NaN or infinity"
        )
    return values


def open_policy(path: Path) -> Policy | DeployedPolicy:
    """The policy of an exported file, a checkpoint or a run directory."""
    return load_policy(path) if is_policy_file(path) else load_saved_policy(path)
