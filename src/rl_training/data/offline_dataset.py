"""Fixed transitions, ready to sample: one `index_select` per field and batch, in memory or on disk."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from rl_training.config.data_fields import TableFields
from rl_training.core.errors import DataError
from rl_training.core.plain import Facts
from rl_training.core.transforms import RewardTransform, Transform, clip_bounds
from rl_training.data.columns import ColumnStore
from rl_training.data.data_info import DataInfo
from rl_training.data.episodes import BoolArray, LastRewards, episode_ends, episode_returns
from rl_training.data.returns import Float64Array, returns_to_go
from rl_training.data.stored_rows import StoredRows, as_array

STANDARD_FIELDS = ("obs", "actions", "rewards", "next_obs", "dones")
OPTIONAL_FIELDS = (
    "truncations",
    "next_actions",
    "returns_to_go",
    "discounts",
    "durations",
    "behavior_logprobs",
)
_ONE_NUMBER_PER_ROW = frozenset({"rewards", "dones", *OPTIONAL_FIELDS} - {"next_actions"})


class TransitionDataset(StoredRows):
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
    ) -> None:
        standard = (obs, actions, rewards, next_obs, dones)
        given: dict[str, npt.ArrayLike | None] = dict(zip(STANDARD_FIELDS, standard, strict=True))
        given |= {"truncations": truncations, "next_actions": next_actions, "returns_to_go": returns_to_go}
        columns = {name: _column(name, values) for name, values in given.items() if values is not None}
        self.store = ColumnStore(columns)
        if truncations is not None:
            self.store = self.store.updated({"truncations": columns["truncations"] * (columns["dones"] == 0)})
        self.info = info or DataInfo()
        self.ordered = True
        self.last_rewards: LastRewards | None = None
        self.returns_gamma: float | None = None

    @classmethod
    def from_dict(cls, values: Facts, *, info: DataInfo | None = None) -> TransitionDataset:
        """Build from named arrays; `field_names.FIELD_NAMES` lists the accepted synonyms.

        Without next observations, row t + 1 is the successor of row t inside an episode.
        """
        from rl_training.data.episode_log import EpisodeLog  # which builds datasets itself

        log = EpisodeLog.from_arrays(values, info=info or DataInfo())
        dataset = log.to_dataset()
        if log.timeouts_known:
            return dataset
        return dataset.with_fields(name for name in OPTIONAL_FIELDS if name != "truncations")

    @classmethod
    def from_dataframe(
        cls,
        frame: object,
        *,
        observations: str | Sequence[str],
        actions: str | Sequence[str],
        reward: str | None = None,
        next_observations: str | Sequence[str] = (),
        episode: str | None = None,
        time: str | None = None,
        terminated: str | None = None,
        truncated: str | None = None,
        behavior_logprobs: str | None = None,
        units: Mapping[str, str] | None = None,
        source: str = "data frame",
        **fields: object,
    ) -> TransitionDataset:
        """Build from a pandas, polars or Arrow table with one row per step, by naming its columns.

        Names may be patterns (`obs_*`). Further keywords are dataset fields of a config (`missing_values`,
        `max_gap` …). Without `reward`, only behaviour cloning can train on it.
        """
        from rl_training.data.tables.frames import as_names, frame_log  # which build datasets themselves

        columns = {
            "observations": as_names(observations),
            "actions": as_names(actions),
            "next_observations": as_names(next_observations),
            "units": dict(units or {}),
        }
        single = {"reward": reward, "episode": episode, "time": time, "terminated": terminated}
        single |= {"truncated": truncated, "behavior_logprobs": behavior_logprobs}
        settings = TableFields.build({**fields, "columns": {**columns, **single}})
        return frame_log(frame, settings, source).to_dataset()

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
            last_rewards = LastRewards(last_rewards.rows, transform.apply_to_array(last_rewards.rewards))
        changed = self.with_columns({"rewards": transform.apply(self.rewards)})._changed(
            last_rewards=last_rewards
        )
        gamma = self.returns_gamma if returns_to_go_gamma is None else returns_to_go_gamma
        if gamma is not None:
            return changed.with_discounted_returns_to_go(gamma)
        returns = self.returns_to_go
        if returns is None or transform.is_identity:
            return changed
        if not transform.is_scaling:
            raise DataError(
                "the returns_to_go of this dataset were given with it and do not follow from shifted or "
                "clipped rewards; pass returns_to_go_gamma to recompute them"
            )
        return changed.with_columns({"returns_to_go": returns * scale})

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
        return self._changed(store=store.only([*STANDARD_FIELDS, *OPTIONAL_FIELDS]))

    def with_batch_transforms(self, transforms: Mapping[str, Transform]) -> TransitionDataset:
        """Apply `transforms` to each batch instead of to the stored rows (for data that stays on disk)."""
        return self._changed(store=replace(self.store, on_gather={**self.store.on_gather, **transforms}))

    def _changed(self, **changes: object) -> TransitionDataset:
        copy = type(self).__new__(type(self))
        copy.__dict__.update({**self.__dict__, **changes})
        return copy


def _column(name: str, values: npt.ArrayLike) -> Tensor:
    column = values if isinstance(values, Tensor) else torch.as_tensor(np.asarray(values))
    column = column.detach().to(torch.float32).contiguous()
    return column.reshape(-1) if name in _ONE_NUMBER_PER_ROW and column.shape[1:] == (1,) else column
