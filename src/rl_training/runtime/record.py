"""Rolling out random actions or a saved policy into rows of data or a file, in a way that can be
interrupted.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from rl_training.core.checkpoints import load_checkpoint, save_checkpoint
from rl_training.core.errors import DataError
from rl_training.core.files import reason
from rl_training.core.spaces import FloatArray
from rl_training.core.streams import RandomStream, torch_generator
from rl_training.core.types import Array, Facts, State
from rl_training.data.convert import DatasetLocation, write_location
from rl_training.data.disk import new_flat_file
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.reading import Allocate
from rl_training.policies.acting import Acting
from rl_training.policies.policy import Policy, load_saved_policy
from rl_training.runtime.collect import Collector
from rl_training.runtime.envs import EnvLike, fields_given_by

COLUMNS = ("obs", "actions", "rewards", "next_obs", "terminated", "truncated")


class Rollout:
    """One environment that is stepped by a policy (its mode, with noise or a random share) or at random.

    Everything drawn comes from streams of the seed, so the same settings give the same rows, and a rollout
    restored from `state_dict` goes on with the row it would have produced next.
    """

    def __init__(
        self,
        env: EnvLike,
        env_kwargs: Mapping[str, object] | None,
        seed: int,
        *,
        policy: Policy | None = None,
        noise: float = 0.0,
        random_share: float = 0.0,
    ) -> None:
        env_id = str(env)
        self.env_id, self.policy, self.noise, self.random_share = env_id, policy, noise, random_share
        self.collector = Collector(env, env_kwargs, 1, seed, fields=fields_given_by(env, env_kwargs))
        self.spaces = self.collector.spaces
        if policy is not None and (
            (policy.spaces.obs_dim, policy.spaces.action_dim) != (self.spaces.obs_dim, self.spaces.action_dim)
        ):
            self.collector.close()
            raise DataError(
                f"dataset_checkpoint must hold a policy for {env_id!r} ({self.spaces.obs_dim} observations, "
                f"{self.spaces.action_dim} actions), got one for {policy.spaces.obs_dim} and "
                f"{policy.spaces.action_dim}"
            )
        memory, counter = (None, None) if policy is None else (policy.memory, policy.counter)
        self.acting = Acting(self.spaces, memory, counter=counter)
        self._streams = {
            "noise": RandomStream([torch_generator(seed, "collect", "noise")], "normal"),
            "random": RandomStream([torch_generator(seed, "collect", "random")], "uniform"),
            "choice": RandomStream([torch_generator(seed, "collect", "choice")], "unit64"),
        }

    def columns(self, rows: int, allocate: Allocate) -> dict[str, Array]:
        """Empty columns for `rows` rows."""
        seen, acted = (self.spaces.obs_dim,), (self.spaces.action_columns,)
        shapes: dict[str, tuple[int, ...]] = {"obs": seen, "next_obs": seen, "actions": acted}
        shapes |= {field.name: field.row_shape for field in self.collector.fields}
        kinds = {"terminated": np.dtype(np.bool_), "truncated": np.dtype(np.bool_)}
        return {
            name: allocate(name, (rows, *shapes.get(name, ())), kinds.get(name, np.dtype(np.float32)))
            for name in self.column_names
        }

    @property
    def column_names(self) -> list[str]:
        return [*COLUMNS, *(field.name for field in self.collector.fields)]

    def fill(
        self,
        columns: Mapping[str, Array],
        start: int = 0,
        stop: int | None = None,
        on_row: Callable[[int], None] | None = None,
    ) -> None:
        """Step until the rows `start` to `stop` of `columns` are filled; actions are in environment units."""
        for row in range(start, len(columns["rewards"]) if stop is None else stop):
            steps = self.collector.step(self._actions())
            columns["obs"][row] = steps.obs[0]
            columns["actions"][row] = done = self.spaces.to_env(steps.actions)[0]
            columns["rewards"][row] = steps.rewards[0]
            columns["next_obs"][row] = steps.next_obs[0]
            columns["terminated"][row] = steps.terminated[0]
            columns["truncated"][row] = steps.truncated[0]
            for name, values in steps.fields.items():
                columns[name][row] = values[0]
            self.acting.follow(done)
            self.acting.reset(rows=steps.terminated | steps.truncated)
            if on_row is not None:
                on_row(row + 1)

    def log(self, columns: Mapping[str, Array], source: str) -> EpisodeLog:
        """The collected rows; the last one counts as a time-out if its episode had more to come."""
        info = DataInfo(source=source, spaces=self.spaces, env_id=self.env_id)
        return EpisodeLog.build({name: columns[name] for name in self.column_names}, info=info)

    def state_dict(self) -> State:
        streams = {name: stream.state_dict() for name, stream in self._streams.items()}
        past = {"acting": self.acting.state_dict()} if self._remembers else {}
        return {"collector": self.collector.state_dict(), "streams": streams, **past}

    def load_state_dict(self, state: Facts) -> None:
        self.collector.load_state_dict(state["collector"])
        for name, stream in self._streams.items():
            stream.load_state_dict(state["streams"][name])
        if self._remembers:
            self.acting.load_state_dict(state["acting"])

    @property
    def _remembers(self) -> bool:
        return self.acting.memory is not None or self.acting.counting is not None

    def close(self) -> None:
        self.collector.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _actions(self) -> FloatArray | None:
        if self.policy is None:
            return None
        seen = self.collector.observations
        asked = self.acting.features(seen)
        actions = self.policy.act_unit(asked, True, **self.acting.counts(seen))
        size = self.spaces.action_dim
        if self.noise:
            drawn = self._streams["noise"].next(size).numpy()
            actions = np.clip(actions + self.noise * drawn, -1.0, 1.0).astype(np.float32)
            if self.spaces.masked:  # of the levels that may be taken, the one that is highest with it
                allowed = self.spaces.allowed(self.collector.observations)
                actions = self.spaces.encode(self.spaces.decode(np.where(allowed, actions, -2.0)))
        if self.random_share and float(self._streams["choice"].next(1)) < self.random_share:
            drawn = self._streams["random"].next(self.spaces.action_columns).numpy()
            actions = self.spaces.random(drawn[None], self.collector.observations)
        return self.policy.limited_unit(actions, asked)


def collect_in_memory(rollout: Rollout, rows: int, source: str) -> EpisodeLog:
    """Fill `rows` rows without interruption."""
    columns = rollout.columns(rows, lambda name, shape, dtype: np.empty(shape, dtype))
    rollout.fill(columns)
    return rollout.log(columns, source)


# Collect data into a file. A kill at any moment loses at most the rows since the last save.


SAVE_EVERY_ROWS = 5_000
PARTIAL_SUFFIX = ".partial"
_STATE = "state.safetensors"


@dataclass(frozen=True)
class CollectionRequest:
    """Everything that decides which rows are collected."""

    env_id: str
    rows: int
    seed: int = 0
    checkpoint: str | None = None
    noise: float = 0.0
    random_share: float = 0.0
    env_kwargs: dict[str, object] = field(default_factory=dict)

    def rollout(self, policy: Policy | None = None) -> Rollout:
        """With the policy of the checkpoint, where that is not open already."""
        if policy is None and self.checkpoint is not None:
            # On the CPU, so that the same one gives the same rows everywhere.
            policy = load_saved_policy(self.checkpoint, device="cpu")
        return Rollout(
            self.env_id,
            self.env_kwargs,
            self.seed,
            policy=policy,
            noise=self.noise,
            random_share=self.random_share,
        )


def collect_to(
    target: DatasetLocation,
    request: CollectionRequest,
    on_rows: Callable[[int], None] = lambda rows: None,
    *,
    policy: Policy | None = None,
) -> EpisodeLog:
    """Collect the rows of `request` into `target`, going on where an interrupted collection stopped.

    Rows lie in flat files beside the target until all are there; resumed or not, the result is the same.
    `on_rows` hears how many rows there are.
    """
    folder = partial_folder(target)
    with request.rollout(policy) as rollout:
        try:
            columns, done = _open(folder, request, rollout)
            on_rows(done)
            while done < request.rows:
                stop = min(done + SAVE_EVERY_ROWS, request.rows)
                rollout.fill(columns, done, stop, on_rows)
                done = stop
                _save(folder, request, rollout, columns, done)
        except OSError as problem:
            if not (folder / _STATE).exists():
                shutil.rmtree(folder, ignore_errors=True)
            raise DataError(
                f"cannot write {folder}: {reason(problem)}; free space and run it again"
            ) from None
        log = rollout.log(columns, str(target))
    write_location(log, target)
    shutil.rmtree(folder)
    return log


def partial_folder(target: DatasetLocation) -> Path:
    """Where the rows of an unfinished collection lie."""
    path = target.path if target.dataset_id is None else Path(target.dataset_id.replace("/", "-"))
    assert path is not None
    return path.with_name(path.name + PARTIAL_SUFFIX)


def _open(folder: Path, request: CollectionRequest, rollout: Rollout) -> tuple[dict[str, Array], int]:
    """The columns to fill and how many of their rows are there already."""
    if (folder / _STATE).exists():
        state = load_checkpoint(folder / _STATE)
        if state["request"] != asdict(request):
            raise DataError(
                f"{folder} holds an unfinished collection with other settings ({_shown(state['request'])}); "
                "repeat those to finish it, or delete the directory"
            )
        if state.get("columns", list(COLUMNS)) != rollout.column_names:
            raise DataError(
                f"{folder} holds an unfinished collection of other fields ({', '.join(state['columns'])}); "
                "declare those to finish it, or delete the directory"
            )
        rollout.load_state_dict(state["rollout"])
        mapped = rollout.columns(
            request.rows, lambda name, shape, dtype: np.load(folder / f"{name}.npy", mmap_mode="r+")
        )
        return mapped, int(state["rows"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return rollout.columns(
        request.rows, lambda name, shape, dtype: new_flat_file(folder / f"{name}.npy", shape, dtype)
    ), 0


def _save(
    folder: Path,
    request: CollectionRequest,
    rollout: Rollout,
    columns: dict[str, Array],
    rows: int,
) -> None:
    for values in columns.values():
        if isinstance(values, np.memmap):
            values.flush()
    state = {
        "request": asdict(request),
        "rollout": rollout.state_dict(),
        "rows": rows,
        "columns": rollout.column_names,
    }
    save_checkpoint(folder / _STATE, state)


def _shown(request: State) -> str:
    return ", ".join(f"{name} {value}" for name, value in request.items() if value not in (None, {}, 0.0))
