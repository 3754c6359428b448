"""Fixed transitions, ready to sample: one `index_select` per field and batch, in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.config.data import TableFields, columns_among
from rl_training.config.limits import Limit, check_limits
from rl_training.core.errors import DataError
from rl_training.core.over_log import rows_since_start
from rl_training.core.transforms import RewardTransform, Transform, clip_bounds
from rl_training.core.types import PENALTIES, STANDARD_FIELDS, Facts
from rl_training.data.episodes import (
    BoolArray,
    Float64Array,
    IntArray,
    LastRewards,
    episode_ends,
    episode_lengths,
    episode_returns,
    returns_to_go,
)
from rl_training.data.fields import ACTION_MASK, FIELDS, in_order, scaled_with_rewards
from rl_training.data.formulas import log_with_costs, log_with_signals, penalised, with_history
from rl_training.data.info import DataInfo
from rl_training.data.log import EpisodeLog
from rl_training.data.rows import ColumnStore, as_array, as_tensor
from rl_training.data.tables.build import frame_log


class TransitionDataset:
    """Transitions (s, a, r, s', terminated) with optional further fields.

    `dones` means terminated, never truncated; a row flagged both ways counts as terminated. Rows are in time
    order, episode after episode, unless the dataset was mixed or sub-sampled: `ordered` is then False, and
    what needs whole episodes raises. Methods return new datasets that share the tensors they do not change.
    """

    def __init__(
        self,
        obs: npt.ArrayLike,
        actions: npt.ArrayLike,
        rewards: npt.ArrayLike,
        next_obs: npt.ArrayLike,
        dones: npt.ArrayLike,
        *,
        truncations: npt.ArrayLike | None = None,
        next_actions: npt.ArrayLike | None = None,
        returns_to_go: npt.ArrayLike | None = None,
        info: DataInfo | None = None,
        **fields: npt.ArrayLike | None,
    ) -> None:
        standard = (obs, actions, rewards, next_obs, dones)
        given: dict[str, npt.ArrayLike | None] = dict(zip(STANDARD_FIELDS, standard, strict=True))
        given |= {"truncations": truncations, "next_actions": next_actions, "returns_to_go": returns_to_go}
        given |= fields
        if fields.get(ACTION_MASK) is not None:
            raise DataError(f"{ACTION_MASK} must come with rows in time order: TransitionDataset.from_dict")
        columns = {name: _column(name, given[name]) for name in in_order(given) if given[name] is not None}
        self.store = ColumnStore(columns)
        if truncations is not None:
            self.store = self.store.updated({"truncations": columns["truncations"] * (columns["dones"] == 0)})
        self.info = info or DataInfo()
        self.ordered = True
        self.last_rewards: LastRewards | None = None
        self.returns_gamma: float | None = None

    @classmethod
    def from_dict(
        cls, values: Facts, *, info: DataInfo | None = None, cost_names: Sequence[str] = ()
    ) -> TransitionDataset:
        """Build from named arrays; the table of fields (`rl_training.data.fields`) has the accepted names.

        `costs` holds a number per row or a column per cost, called as `cost_names` say.

        Without next observations, row t + 1 is the successor of row t inside an episode. A name that no field
        has is refused: what it holds would be lost.
        """
        info = info or DataInfo()
        if cost_names:
            info = replace(info, cost_names=tuple(cost_names))
        log = EpisodeLog.from_arrays(values, info=info)
        dataset = cls.from_log(log)
        if log.timeouts_known:
            return dataset
        return dataset.with_fields(name for name in dataset.fields if name != "truncations")

    @classmethod
    def from_dataframe(
        cls,
        frame: object,
        *,
        observations: str | Sequence[str],
        actions: str | Sequence[str],
        next_observations: str | Sequence[str] = (),
        reward: str | None = None,
        episode: str | None = None,
        time: str | None = None,
        terminated: str | None = None,
        truncated: str | None = None,
        behavior_logprobs: str | None = None,
        operator: str | None = None,
        units: Mapping[str, str] | None = None,
        source: str = "data frame",
        **fields: object,
    ) -> TransitionDataset:
        """Build from a pandas, polars or Arrow table with one row per step, by naming its columns.

        Names may be patterns (`obs_*`). Further keywords are dataset fields of a config (`missing_values`,
        `max_gap` …). Without `reward`, only behaviour cloning can train on it.
        """
        named: dict[str, object] = {"observations": observations, "actions": actions, "reward": reward}
        named |= {"next_observations": next_observations, "episode": episode, "time": time}
        named |= {"terminated": terminated, "truncated": truncated, "behavior_logprobs": behavior_logprobs}
        columns, others = columns_among({**named, "operator": operator, "units": units, **fields})
        settings = TableFields.build({**others, "columns": columns})
        return cls.from_log(frame_log(frame, settings, source))

    @classmethod
    def from_log(cls, log: EpisodeLog, first_action: Sequence[float] = ()) -> TransitionDataset:
        """Transitions of a log, ready to sample; of a log with signals, these are the observations.

        Without recorded successors, the successor of a row is the next row of its episode. A terminal row has
        none and needs none (its own observation stands in). The last row of a timed-out episode has none and
        is dropped: the row before becomes the time-out, and the dropped reward stays part of the returns.
        """
        log = log_with_signals(log, first_action)
        ends, complete = log.ends, log.complete
        if not complete.any():
            raise DataError(
                f"{log.info.source}: no row has a successor ({int(ends.sum())} episodes of one row "
                "each), so there is no transition to learn from; are the ends marked rightly? Check the "
                "episode column and the flags, or give next observations"
            )
        columns = {"obs": log.obs, "actions": log.actions, "rewards": log.rewards, **log.further}
        flags = {"dones": log.terminated, "truncations": log.truncated}
        maps: dict[str, Tensor] = {}
        last_rewards = None
        if log.next_obs is not None:
            columns["next_obs"] = log.next_obs
        else:
            rows = np.flatnonzero(complete).astype(np.int32 if len(log) < 2**31 else np.int64)
            maps["next_obs"] = torch.from_numpy(rows + ~ends[rows])
            if len(incomplete := np.flatnonzero(~complete)):
                ends_before = incomplete[(incomplete > 0) & ~ends[incomplete - 1]] - 1
                flags["truncations"] = log.truncated.copy()
                flags["truncations"][ends_before] = True
                flags = {name: values[complete] for name, values in flags.items()}
                maps |= dict.fromkeys(columns, torch.from_numpy(rows))
                costs = log.further.get("costs")
                last_rewards = LastRewards(
                    ends_before - np.searchsorted(incomplete, ends_before),
                    log.rewards[ends_before + 1],
                    None if costs is None else costs[ends_before + 1],
                )
        # in single precision; float columns are not copied
        tensors = {name: as_tensor(column).float() for name, column in {**columns, **flags}.items()}
        tensors.setdefault("next_obs", tensors["obs"])  # one column, looked up twice
        store = ColumnStore({name: tensors[name] for name in in_order(tensors)}, maps)
        return cls.from_store(store, last_rewards=last_rewards, info=log.info)

    @classmethod
    def from_store(
        cls,
        store: ColumnStore,
        *,
        last_rewards: LastRewards | None = None,
        returns_gamma: float | None = None,
        ordered: bool = True,
        info: DataInfo | None = None,
    ) -> TransitionDataset:
        """Wrap stored columns without copying."""
        dataset = cls.__new__(cls)
        dataset.store, dataset.info, dataset.ordered = store, info or DataInfo(), ordered
        dataset.last_rewards, dataset.returns_gamma = last_rewards, returns_gamma
        return dataset

    def with_history(
        self, history: int, rate: Mapping[str, float], first_action: Sequence[float] = ()
    ) -> TransitionDataset:
        """The rows with that much history as observations, and the last value of limited actions."""
        if not history and not rate:
            return self
        if self.info.signals is not None:
            raise DataError(
                f"{self.info.source}: its observations are signals already; read it with history instead"
            )
        taken = log_with_signals(with_history(self._as_log("history"), history, rate), first_action)
        changed = self.with_columns({name: as_tensor(getattr(taken, name)) for name in ("obs", "next_obs")})
        return changed._changed(info=taken.info)

    def with_costs(self, costs: Mapping[str, str]) -> TransitionDataset:
        """The rows with these costs (name -> formula over columns); see `rl_training.data.formulas`."""
        if not costs or self.cost_names == tuple(costs):
            return self
        taken = log_with_costs(self._as_log("costs"), costs)
        changed = self.with_columns({"costs": as_tensor(taken.further["costs"])})
        return changed._changed(info=taken.info)

    def _as_log(self, purpose: str) -> EpisodeLog:
        ends, dones = self.episode_ends(purpose), as_array(self.dones) != 0
        wanted = ("obs", "actions", "rewards", "next_obs", "costs")
        columns = {name: as_array(self.store.whole(name)) for name in wanted if name in self.fields}
        further = {"costs": columns.pop("costs")} if "costs" in columns else {}
        return EpisodeLog(
            **columns, terminated=dones, truncated=ends & ~dones, further=further, info=self.info
        )

    def __len__(self) -> int:
        return self.store.length("rewards")

    def __repr__(self) -> str:
        return f"TransitionDataset({len(self)} rows, fields {', '.join(self.fields)}, {self.info.source})"

    @property
    def fields(self) -> tuple[str, ...]:
        """Names of the fields that a batch holds."""
        return tuple(self.store.columns)

    @property
    def device(self) -> torch.device:
        return self.store.columns["rewards"].device

    @property
    def obs(self) -> Tensor:
        return self.store.whole("obs")

    @property
    def actions(self) -> Tensor:
        return self.store.whole("actions")

    @property
    def rewards(self) -> Tensor:
        return self.store.whole("rewards")

    @property
    def next_obs(self) -> Tensor:
        return self.store.whole("next_obs")

    @property
    def dones(self) -> Tensor:
        return self.store.whole("dones")

    @property
    def truncations(self) -> Tensor | None:
        return self.optional("truncations")

    @property
    def next_actions(self) -> Tensor | None:
        return self.optional("next_actions")

    @property
    def returns_to_go(self) -> Tensor | None:
        return self.optional("returns_to_go")

    @property
    def cost_names(self) -> tuple[str, ...]:
        """What the columns of `costs` are called."""
        costs = self.store.columns.get("costs")
        return () if costs is None else self.info.named_costs(costs.shape[1])

    @property
    def discounts(self) -> Tensor | None:
        """Bootstrap factor per row, present after `with_n_step`."""
        return self.optional("discounts")

    @property
    def seen_dim(self) -> int:
        """Numbers that are seen in a row, of which observations may be signals."""
        if self.info.signals is not None:
            return len(self.info.signals.program.columns)
        obs = self.store.columns["obs"]
        return obs.shape[1] if obs.ndim > 1 else 1

    def gather(self, indices: Tensor) -> dict[str, Tensor]:
        """The rows `indices` (`[B]` or `[S, B]`, on the dataset's device) of every field."""
        if indices.ndim == 1:
            return self.store.gather(indices)
        batch = self.store.gather(indices.reshape(-1))
        return {name: values.view(*indices.shape, *values.shape[1:]) for name, values in batch.items()}

    def sample(
        self,
        batch_size: int,
        device: torch.device | str | None = None,
        generator: torch.Generator | None = None,
    ) -> dict[str, Tensor]:
        """Rows drawn uniformly with replacement from `generator` (torch's own when none is given)."""
        if not len(self):
            raise DataError("cannot sample: the dataset is empty")
        source = self.device if generator is None else generator.device
        indices = torch.randint(len(self), (batch_size,), generator=generator, device=source)
        batch = self.gather(indices.to(self.device))
        return batch if device is None else {name: values.to(device) for name, values in batch.items()}

    def optional(self, name: str) -> Tensor | None:
        """A whole field, or None where the rows do not have it."""
        return self.store.whole(name) if name in self.store.columns else None

    def to(self, device: torch.device | str) -> TransitionDataset:
        """The dataset with every field on `device`."""
        return self._changed(store=self.store.to(device))

    def with_fields(self, names: Iterable[str]) -> TransitionDataset:
        """The standard fields and those of `names` that exist: a batch costs one copy per field."""
        return self._changed(store=self.store.only([*STANDARD_FIELDS, *names]))

    def episode_ends(self, purpose: str = "episode ends") -> BoolArray:
        """True at the last row of every episode."""
        if not self.ordered:
            raise DataError(
                f"{purpose} cannot be computed on mixed, sub-sampled or n-step rows, whose episodes are torn "
                "apart; compute them on each part before"
            )
        truncations = self.truncations
        return episode_ends(as_array(self.dones), None if truncations is None else as_array(truncations))

    def episode_returns(self) -> Float64Array:
        """Undiscounted return of every episode."""
        return episode_returns(
            as_array(self.rewards), self.episode_ends("episode returns"), self.last_rewards
        )

    def episode_costs(self) -> tuple[Float64Array, IntArray]:
        """What every cost adds up to in each episode, `[episodes, costs]`, and in how many steps."""
        ends, costs, last = self.episode_ends("episode costs"), as_array(self.store.whole("costs")), None
        totals, steps = np.zeros((int(ends.sum()), costs.shape[1])), episode_lengths(ends)
        for index, column in enumerate(costs.T):
            if self.last_rewards is not None and self.last_rewards.costs is not None:
                last = replace(self.last_rewards, rewards=self.last_rewards.costs[:, index])
            totals[:, index] = episode_returns(column, ends, last)
        if last is not None:
            steps[np.searchsorted(np.flatnonzero(ends), last.rows)] += 1
        return totals, steps

    def check_limits(self, limits: Sequence[Limit]) -> list[str]:
        """Refuse limits that make no sense for these costs; sentences on those that nothing can break."""
        costs, steps = np.zeros((0, 0)), np.ones(1, dtype=np.int64)
        if self.cost_names and limits:
            costs, steps = as_array(self.store.whole("costs")), self.episode_costs()[1]
        return check_limits(limits, self.cost_names, costs, steps, self.info.source)

    def step_discounts(self, gamma: float, *, by_time: bool = False) -> Float64Array:
        """The factor of what follows each row: gamma, or gamma^duration where times were logged."""
        if not by_time:
            return np.full(len(self), gamma)
        durations = self.optional("durations")
        if durations is None:
            raise DataError(f"{self.info.source}: discount_by_time needs the time of steps; set columns.time")
        factors: Float64Array = gamma ** as_array(durations).astype(np.float64)
        return factors

    def with_discounted_returns_to_go(
        self, gamma: float, *, failure_reward: float | None = None, by_time: bool = False
    ) -> TransitionDataset:
        """Add or recompute Monte-Carlo returns-to-go; see `compute_discounted_returns_to_go`."""
        ends = self.episode_ends("returns_to_go")
        returns = returns_to_go(
            as_array(self.rewards),
            ends,
            gamma,
            last_rewards=self.last_rewards,
            failure_reward=failure_reward,
            discounts=self.step_discounts(gamma, by_time=True) if by_time else None,
            dtype=np.float32,
        )
        column = torch.from_numpy(returns).to(self.device)
        return self.with_columns({"returns_to_go": column})._changed(returns_gamma=gamma)

    def with_discounts(self, gamma: float, *, by_time: bool) -> TransitionDataset:
        """Add the factor of the successor's value: gamma, or gamma to the power of the step's duration."""
        factors = self.step_discounts(gamma, by_time=by_time).astype(np.float32)
        return self.with_columns({"discounts": torch.from_numpy(factors).to(self.device)})

    def with_episodes(self) -> TransitionDataset:
        """Add the number of the episode of each row, counted from 0."""
        ends = torch.from_numpy(self.episode_ends("episodes")).to(self.device).float()
        return self.with_columns({"episodes": ends.double().cumsum(0).float() - ends})

    def with_signal_states(self) -> TransitionDataset:
        """Add what its signals remember once each row is over: what the step that follows begins with."""
        signals = self.info.signals
        if signals is None or not signals.program.plain_places:
            raise DataError(f"{self.info.source}: signal_states need signals among which all columns are")
        columns = as_array(self.obs)[:, signals.program.plain_places]
        since_start = rows_since_start(self.episode_ends("signal_states"))
        states = signals.program.states_over_log(
            columns, as_array(self.actions), since_start, signals.first_action
        )
        return self.with_columns({"signal_states": as_tensor(states).float().to(self.device)})

    def with_next_actions(self) -> TransitionDataset:
        """Add the logged action of the row that holds the next observation; without one, a row's own.

        After a termination the next action does not matter. At a time-out whose successor was recorded as an
        observation alone, none was logged, and the row's own action is the nearest guess.
        """
        columns, maps = self.store.columns, dict(self.store.row_maps)
        shares_rows = columns["next_obs"] is columns["obs"] and "next_obs" in maps
        shares_rows = shares_rows and len(columns["actions"]) == len(columns["obs"])
        if shares_rows or "actions" in maps:
            maps["next_actions"] = maps["next_obs" if shares_rows else "actions"]
        store = replace(self.store, columns={**columns, "next_actions": columns["actions"]}, row_maps=maps)
        if not shares_rows:
            ends = self.episode_ends("next_actions")
            following = torch.from_numpy(np.arange(len(ends)) + ~ends).to(self.device)
            store = store.looked_up_through(following, ["next_actions"])
        return self.with_store(store)

    def with_penalties(self, weights: Sequence[float], scale: float) -> TransitionDataset:
        """scale x sum of weight x cost as a column of its own; rewards stay as they are."""
        taken = -scale * penalised(np.zeros(len(self)), as_array(self.store.whole("costs")), weights)
        return self.with_columns({PENALTIES: torch.from_numpy(taken).to(self.device)})

    def with_penalty(self, weights: Sequence[float]) -> TransitionDataset:
        """reward - sum of weight x cost, a weight per cost; what follows from rewards is left as it is."""
        costs, last = as_array(self.store.whole("costs")), self.last_rewards
        rewards = penalised(as_array(self.rewards), costs, weights)
        if last is not None and last.costs is not None:
            last = replace(last, rewards=penalised(last.rewards, last.costs, weights))
        changed = self.with_columns({"rewards": torch.from_numpy(rewards).to(self.device)})
        return changed._changed(last_rewards=last)

    def with_reward_transform(
        self,
        *,
        scale: float = 1.0,
        shift: float = 0.0,
        clip: float | tuple[float, float] | None = None,
        returns_to_go_gamma: float | None = None,
    ) -> TransitionDataset:
        """rewards -> clip(scale * rewards + shift), with returns-to-go recomputed from the new rewards.

        Existing returns-to-go are recomputed with the gamma they were computed with; ones that came from
        elsewhere need `returns_to_go_gamma`, unless the rewards are only scaled.
        """
        transform = RewardTransform(scale, shift, clip_bounds(clip))
        last_rewards = self.last_rewards
        if last_rewards is not None:
            last_rewards = replace(last_rewards, rewards=transform.apply_to_array(last_rewards.rewards))
        changed = self.with_columns({"rewards": transform.apply(self.rewards)})._changed(
            last_rewards=last_rewards
        )
        gamma = self.returns_gamma if returns_to_go_gamma is None else returns_to_go_gamma
        if gamma is not None:
            changed = changed.with_discounted_returns_to_go(gamma)
        remedy = "pass returns_to_go_gamma to recompute them"
        for name in self.fields:
            recomputed = name == "returns_to_go" and gamma is not None
            if FIELDS.get(name).follows_rewards and not (recomputed or transform.is_identity):
                factor = scaled_with_rewards(name, transform, remedy)
                changed = changed.with_columns({name: self.store.whole(name) * factor})
        return changed

    def select_rows(self, rows: Tensor) -> TransitionDataset:
        """A view of some rows, in that order; the fields of a row stay together."""
        store = self.store.select(rows.to(self.device))
        return self._changed(store=store, ordered=False, last_rewards=None, returns_gamma=None)

    def with_store(self, store: ColumnStore) -> TransitionDataset:
        """The same rows, kept in another store."""
        return self._changed(store=store)

    def compacted(self) -> TransitionDataset:
        """The same rows without indirection; frees stored rows that nothing refers to."""
        return self._changed(store=self.store.compacted())

    def with_columns(self, columns: Mapping[str, Tensor]) -> TransitionDataset:
        """Replace or add whole fields, given row by row."""
        store = self.store.updated(columns)
        return self._changed(store=store.only(in_order(store.columns)))

    def with_batch_transforms(self, transforms: Mapping[str, Transform]) -> TransitionDataset:
        """Apply `transforms` to each batch instead of to the stored rows (for data that stays on disk)."""
        return self._changed(store=replace(self.store, on_gather={**self.store.on_gather, **transforms}))

    def _changed(self, **changes: object) -> TransitionDataset:
        copy = type(self).__new__(type(self))
        copy.__dict__.update({**self.__dict__, **changes})
        return copy


def _column(name: str, values: npt.ArrayLike | None) -> Tensor:
    column = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    column = column.detach().to(torch.float32).contiguous()
    if name == "costs" and column.ndim == 1:
        return column.unsqueeze(-1)
    return column.reshape(-1) if FIELDS.get(name).kind != "vector" and column.shape[1:] == (1,) else column
