"""Fitting a model of the plant: an ensemble, each member on its own resample of the episodes.

The judge fits one of its own, and the algorithms that learn inside a model have it as their first stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.algorithms.graphs import Step
from rl_training.algorithms.learner import Batch, Learner, MetricTensors, Noise, NoiseShapes
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.core.errors import ConfigError
from rl_training.core.signals import Signals
from rl_training.core.streams import derive_seed, torch_generator
from rl_training.core.types import Facts
from rl_training.models.actors import gaussian_log_prob
from rl_training.models.dynamics import DynamicsEnsemble, DynamicsModel
from rl_training.models.models import PolicyModel
from rl_training.policies.inputs import SignalMemory
from rl_training.policies.policy import Policy
from rl_training.policies.torch_signals import TorchSignals

WEIGHT_DECAY = 1e-5

UPDATES_PER_CHECK = 100
"""From one look at the episodes that a member has not seen to the next."""

NO_ERROR_YET = 1e30
SMALLEST_RESIDUAL = 1e-3

GROUPS = 1024
"""Episodes are resampled in at most so many groups."""


def resample_weights(members: int, episodes: int, seed: int) -> Tensor:
    """How often each member sees each episode, `[members, episodes]`: a bootstrap over whole episodes."""
    generator = torch_generator(derive_seed(seed, "judge"), "resamples")
    drawn = torch.randint(episodes, (members, episodes), generator=generator)
    counts = torch.zeros(members, episodes)
    return counts.scatter_add_(1, drawn, torch.ones(members, episodes))


def surprise(dynamics: DynamicsEnsemble, batch: Batch) -> Tensor:
    """-log p of the change and reward that followed, `[*S, members, B]`."""
    return surprise_and_errors(dynamics, batch)[0]


def surprise_and_errors(dynamics: DynamicsEnsemble, batch: Batch) -> tuple[Tensor, Tensor]:
    """The same, and what was wrong with the means, `[*S, members, B, O + 1]`.

    Where the model does not learn its spread, every number counts alike, whatever its errors were so far.
    What steps earn that ended an episode is not asked here.
    """
    obs, actions, next_obs = (batch[name].unsqueeze(-3) for name in ("obs", "actions", "next_obs"))
    change = dynamics.change_of(obs, next_obs, batch["rewards"].unsqueeze(-2))
    mean, log_std = dynamics(obs, actions)
    if not dynamics.probabilistic:
        log_std = torch.zeros_like(mean)
    states = -gaussian_log_prob(change[..., :-1], mean[..., :-1], log_std[..., :-1])
    rewards = -gaussian_log_prob(change[..., -1:], mean[..., -1:], log_std[..., -1:])
    going_on = 1.0 - batch["dones"].unsqueeze(-2)
    wrong = change - mean
    wrong = torch.cat([wrong[..., :-1], wrong[..., -1:] * going_on.unsqueeze(-1)], dim=-1)
    return states + going_on * rewards, wrong


def surprise_of_ends(dynamics: DynamicsEnsemble, batch: Batch) -> Tensor:
    """-log p of ending there or not, and half the squared error of what an end earned: `[*S, members, B]`."""
    odds, reward = dynamics.ends(*(batch[name].unsqueeze(-3) for name in ("obs", "actions", "next_obs")))
    ended = batch["dones"].unsqueeze(-2).expand(odds.shape)
    wrong = (reward - batch["rewards"].unsqueeze(-2)) / dynamics.end_rewards[..., 1:2]
    happened = F.binary_cross_entropy_with_logits(odds, ended, reduction="none")
    return happened + 0.5 * ended * wrong.square()


def surprise_of_penalties(dynamics: DynamicsEnsemble, batch: Batch) -> Tensor:
    """Squared error of what costs take off the reward, in units of its spread, `[*S, members, B]`."""
    found = dynamics.penalty(*(batch[name].unsqueeze(-3) for name in ("obs", "actions", "next_obs")))
    return ((found - batch["penalties"].unsqueeze(-2)) / dynamics.penalties[..., 1:2]).square()


class ImaginedSignals:
    """The signals of a policy inside a model, in the units of its learner.

    A network that predicted lags would let them drift apart from what they lag. So the model predicts
    columns, and signals follow from these by the program that computed them over the log, and computes them
    where the policy acts. Gradients go through it, and so through what past actions do to later steps.
    """

    def __init__(self, policy: Policy, signals: Signals) -> None:
        self.policy, self.program = policy, TorchSignals(signals.program)
        self.places = torch.tensor(signals.program.plain_places, device=policy.device)

    def following(self, predicted: Tensor, actions: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What is seen after `actions` in [-1, 1], `[…, B, width]`, where its columns are as `predicted`, and
        the memory afterwards. Before B, actions and memory may have an axis of one.
        """
        obs = self.plain(predicted).index_select(-1, self.places)
        axes = obs.shape[:-1]
        done, before = (each.expand(*axes, -1) for each in (self.policy.decoded(actions), memory))
        going_on = torch.zeros((*axes, 1), dtype=torch.bool, device=obs.device)
        signals, after = self.program.step(obs, done, before, going_on)
        return self.policy.prepared(signals), after.to(memory.dtype)

    def as_run(self, actions: Tensor, seen: Tensor) -> Tensor:
        """Actions in [-1, 1] as the policy's rate limits let them run."""
        if self.policy.rate_limit is None:
            return actions
        limited = self.policy.to_units(actions, self.plain(seen))
        return ((limited - self.policy.action_middle) / self.policy.action_half).to(actions.dtype)

    def plain(self, seen: Tensor) -> Tensor:
        """What is seen, in the units of the log."""
        for step in reversed(self.policy.observation_steps):
            seen = step.undo(seen)
        return seen


class ModelBasedFields(OfflineFields):
    """Data of a run that searches inside a model: columns in one scale, and episodes that it never saw."""

    normalize_observations: bool = setting(
        True, "(obs - mean) / (std + 1e-3) over the data, saved with the policy"
    )
    validation_share: float | Literal["auto"] = setting(
        "auto",
        "share of whole episodes held out of training, drawn with dataset_seed; by these it is judged; auto: "
        "a fifth, and of fewer than 100 episodes more, so that there are 20 of them where 40 were logged",
        ge=0,
        lt=1,
    )


class ModelLearner(Learner):
    """A learner with a `dynamics` ensemble: how it is fitted, and which of its weights are kept.

    A member is looked at on the episodes that its resample left out (about a third of them). The weights at
    which it predicted these best are the target `dynamics`: early stopping, without a look at the host.
    """

    needs: ClassVar[frozenset[str]] = frozenset({"episodes"})
    looks_at_data: ClassVar[bool] = True

    def __init__(self, model: PolicyModel, *, seed: int = 0, **keywords: object) -> None:
        self.resample_seed = seed
        super().__init__(model, seed=seed, **keywords)

    def add_dynamics(self, learning_rate: float | None = None) -> None:
        """The model's ensemble with its optimisers, its resamples and the weights that are kept."""
        dynamics = self.part("dynamics", DynamicsEnsemble)
        self.dynamics = dynamics
        self._has_ends: bool | None = None
        networks = [("model", dynamics.net), ("ends", dynamics.end_net)]
        for name, network in [
            *networks,
            *([("penalty", dynamics.penalty_net)] if dynamics.penalised else []),
        ]:
            self.add_optimizer(name, network.parameters(), "critic", WEIGHT_DECAY, learning_rate)
        self.kept_dynamics = self.add_target("dynamics", dynamics)
        zeros = {name: torch.zeros(dynamics.members) for name in ("unseen_error", "unseen_rows")}
        zeros["unseen_squares"] = torch.zeros(dynamics.members, dynamics.obs_dim + 1)
        self.scalars |= {name: value.to(self.device) for name, value in zeros.items()}
        self.scalars["best_error"] = torch.full((dynamics.members,), NO_ERROR_YET, device=self.device)
        self.scalars["resamples"] = self._resamples(GROUPS)

    def look_at_data(self, rows: Mapping[str, Tensor], *, margin: float = 0.0, scaled: bool = False) -> None:
        """Take units, range and the number of episodes from the rows to learn from, before the first update.

        `margin` and `scaled` are those of `DynamicsEnsemble.set_scales`.
        """
        for dynamics in (self.dynamics, self.kept_dynamics):
            dynamics.set_scales(rows, margin=margin, scaled=scaled)
            if self.signals is not None:
                dynamics.set_predicted(self.signals.places.tolist())
        self.scalars["resamples"].copy_(self._resamples(int(rows["episodes"].max()) + 1))
        self._has_ends = None

    def build_step(self, stage: str, shapes: NoiseShapes) -> Step:
        """What a graph cannot ask its tensors is found before: whether there are ends, numbers in signals."""
        bool(self.has_ends)
        if (signals := self.signals) is not None:
            nothing = torch.zeros(1, self.dynamics.obs_dim, device=self.device)
            memory = torch.zeros(1, signals.program.program.layout.size, device=self.device)
            signals.following(nothing, torch.zeros(1, self.model.action_dim, device=self.device), memory)
        return super().build_step(stage, shapes)

    @cached_property
    def signals(self) -> ImaginedSignals | None:
        """How what the policy is asked with follows from imagined columns; none where it is the columns, or
        where some of them are seen through formulas alone, so that a network must predict the signals.
        """
        memory = self.policy.memory if self.follows_signals else None
        if not (isinstance(memory, SignalMemory) and memory.program.plain_places):
            return None
        return ImaginedSignals(self.policy, memory.signals)

    def memory_of(self, batch: Batch) -> Tensor:
        """What the signals of logged rows remember once these are over, `[*S, B, state_size]`."""
        if self.signals is None:
            return batch["obs"][..., :0]
        if "signal_states" not in batch:
            raise ConfigError(
                f"{type(self).__name__} needs the batch field signal_states, as its policy is asked with "
                "signals of time"
            )
        return batch["signal_states"]

    def followed(self, predicted: Tensor, actions: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        """What is seen after `actions`, where the model has `predicted` it, and the memory afterwards."""
        if self.signals is None:
            return predicted, memory
        return self.signals.following(predicted, actions, memory)

    def as_run(self, actions: Tensor, seen: Tensor) -> Tensor:
        """Actions within what rate limits leave."""
        return actions if self.signals is None else self.signals.as_run(actions, seen)

    def _resamples(self, episodes: int) -> Tensor:
        """Always the same size, so that a saved learner needs no data to be opened."""
        drawn = resample_weights(self.dynamics.members, min(episodes, GROUPS), self.resample_seed)
        return F.pad(drawn, (0, GROUPS - drawn.shape[1])).to(self.device)

    @property
    def has_ends(self) -> bool:
        """Whether the log has terminations; asked of the tensors once."""
        if self._has_ends is None:
            self._has_ends = bool(self.dynamics.has_ends.any())
        return self._has_ends

    def load_state_dict(self, state: Facts) -> None:
        super().load_state_dict(state)
        self._has_ends = None

    def model_step(self, batch: Batch, *, check: bool) -> MetricTensors:
        """One update of the ensemble; with `check` the better weights are kept."""
        weights = self.row_weights(batch["episodes"])
        errors, wrong = surprise_and_errors(self.dynamics, batch)
        loss = (weights * errors).mean(-1).sum(-1)
        self.minimize("model", loss)
        if self.has_ends:
            of_ends = surprise_of_ends(self.dynamics, batch)
            self.minimize("ends", (weights * of_ends).mean(-1).sum(-1))
            errors = errors.detach() + of_ends
        if self.dynamics.penalised:
            of_penalties = surprise_of_penalties(self.dynamics, batch)
            self.minimize("penalty", (weights * of_penalties).mean(-1).sum(-1))
            errors = errors.detach() + of_penalties
        unseen = (weights == 0).to(errors.dtype)
        missed, rows = (unseen * errors.detach()).sum(-1), unseen.sum(-1)
        if not self.resting:
            self.scalars["unseen_error"].add_(missed)
            self.scalars["unseen_rows"].add_(rows)
            self.scalars["unseen_squares"].add_((unseen.unsqueeze(-1) * wrong.detach().square()).sum(-2))
            if check:
                self._keep_better()
        return {
            "model_loss": loss.detach(),
            "model_unseen_loss": missed.sum(-1) / rows.sum(-1).clamp_min(1.0),
        }

    def row_weights(self, episodes: Tensor) -> Tensor:
        """How often each member sees the episodes of these rows: `[*S, B]` -> `[*S, members, B]`."""
        resamples = self.scalars["resamples"]
        rows = (episodes.long() % resamples.shape[-1]).unsqueeze(-2)
        return resamples.gather(-1, rows.expand(*resamples.shape[:-1], rows.shape[-1]))

    @torch.no_grad()
    def _keep_better(self) -> None:
        """Members that predict what they have not seen better than ever before are kept as they are now."""
        error, rows, best = (self.scalars[name] for name in ("unseen_error", "unseen_rows", "best_error"))
        squares = self.scalars["unseen_squares"]
        mean = error / rows.clamp_min(1.0)
        better = (mean < best) | (rows == 0)
        best.copy_(torch.where(better, mean, best))
        pairs = zip(self.kept_dynamics.parameters(), self.dynamics.parameters(), strict=True)
        for kept, now in pairs:
            chosen = better.reshape(*better.shape, *(1,) * (now.dim() - better.dim()))
            kept.copy_(torch.where(chosen, now, kept))
        residual = (squares / rows.unsqueeze(-1).clamp_min(1.0)).sqrt().clamp_min(SMALLEST_RESIDUAL)
        known = (better & (rows > 0)).reshape(*better.shape, 1, 1)
        spread = self.kept_dynamics.residual
        spread.copy_(torch.where(known, residual.unsqueeze(-2), spread))
        for each in (error, rows, squares):
            each.zero_()

    @property
    def checks_now(self) -> bool:
        """Whether the update that is due looks at the episodes that were left out."""
        return (self.updates + 1) % UPDATES_PER_CHECK == 0


class Dynamics(ModelLearner):
    """Maximum likelihood of the logged successors and rewards, and nothing else."""

    model: DynamicsModel

    def setup(self) -> None:
        self.add_dynamics()

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {}

    def stage(self) -> str:
        return "check" if self.checks_now else "full"

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        return self.model_step(batch, check=stage == "check")


@dataclass(frozen=True)
class PredictionErrors:
    """Root mean square errors of the states `steps` ahead, column by column, in the columns' units."""

    steps: int
    predicted: Tensor
    """`[O + 1]`: each column of the state, and the reward"""
    unchanged: Tensor
    """the error of saying that nothing changes, and that every reward is the mean one"""


@torch.no_grad()
def prediction_errors(
    dynamics: DynamicsEnsemble,
    rows: Mapping[str, Tensor],
    ends: Tensor,
    steps: int = 1,
    *,
    unseen: Tensor | None = None,
    learner: ModelLearner | None = None,
) -> PredictionErrors:
    """How well the members' mean predicts `steps` ahead, from rows in time order.

    `rows` holds `obs actions next_obs rewards`, a row each, and `ends` marks the last rows of episodes. The
    logged actions are played, from every row that has so many rows of its episode before it ends. `unseen`
    `[members, rows]` says whose answer counts, where members know some of the rows already; what nobody
    may answer is left out. A `learner` says how signals follow from what is predicted.
    """
    count = len(ends)
    ends_at = torch.nonzero(ends).squeeze(-1)
    left = ends_at[torch.searchsorted(ends_at, torch.arange(count))] - torch.arange(count)
    asked = left >= steps - 1
    counts = torch.ones(dynamics.members, count) if unseen is None else unseen.float()
    starts = torch.nonzero(asked & (counts.sum(0) > 0)).squeeze(-1)
    share = (counts / counts.sum(0))[:, starts].unsqueeze(-1)
    state = rows["obs"][starts].expand(dynamics.members, -1, -1)
    memory = None if learner is None else learner.memory_of(rows)[starts].unsqueeze(0)
    reward = torch.zeros(dynamics.members, len(starts))
    for step in range(steps):
        actions = rows["actions"][starts + step]
        mean, _ = dynamics(state, actions.expand(dynamics.members, -1, -1))
        before, (state, reward) = state, dynamics.following(state, mean)
        state = dynamics.within_range(state)
        if dynamics.has_ends.any():
            _, reward = dynamics.ended(before, actions.expand(dynamics.members, -1, -1), state, reward)
        if learner is not None and memory is not None:
            state, memory = learner.followed(state, actions.unsqueeze(0), memory)
    last = starts + steps - 1
    truth = torch.cat([rows["next_obs"][last], rows["rewards"][last].unsqueeze(-1)], dim=-1)
    found = (share * torch.cat([state, reward.unsqueeze(-1)], dim=-1)).sum(0)
    still = rows["rewards"].mean().expand(len(starts), 1)
    unchanged = torch.cat([rows["obs"][starts], still], dim=-1)

    def error(guess: Tensor) -> Tensor:
        return (guess - truth).double().square().mean(0).sqrt()

    return PredictionErrors(steps, error(found), error(unchanged))


@dataclass(frozen=True)
class ColumnErrors:
    """How well one column, or the reward, is predicted, in its own units."""

    column: str
    steps: tuple[int, ...]
    model: tuple[float, ...]
    """root mean square error so many steps ahead"""
    unchanged: tuple[float, ...]
    """that of saying that nothing changes, and that every reward is the mean one"""

    @property
    def left(self) -> float:
        """Share of what changes that the model cannot tell, as far ahead as was asked."""
        return self.model[-1] / self.unchanged[-1] if self.unchanged[-1] > 0.0 else 0.0


STEPS_AHEAD = (1, 10)
MOST_ROWS = 20_000
"""Rows that errors are measured on."""


def column_errors(
    dynamics: DynamicsEnsemble,
    rows: Mapping[str, Tensor],
    ends: Tensor,
    names: Sequence[str],
    units: Tensor,
    *,
    unseen: Tensor | None = None,
    learner: ModelLearner | None = None,
    steps: Sequence[int] = STEPS_AHEAD,
) -> tuple[ColumnErrors, ...]:
    """Of every column that is predicted, and of the reward: `names` and `units` `[O + 1]`, reward last.

    Further ahead than the longest episode goes is not asked; of many rows, the first whole episodes are.
    """
    whole = torch.nonzero(ends[:MOST_ROWS]).flatten()
    count = int(whole[-1]) + 1 if len(whole) else min(len(ends), MOST_ROWS)
    rows, ends = {name: values[:count] for name, values in rows.items()}, ends[:count].clone()
    ends[-1] = True
    unseen = None if unseen is None else unseen[:, :count]
    if unseen is not None and not unseen.any():
        return ()
    ends_at = torch.nonzero(ends).squeeze(-1)
    longest = int(torch.diff(ends_at, prepend=torch.tensor([-1])).max())
    asked = [each for each in steps if each <= longest]
    found = [prediction_errors(dynamics, rows, ends, each, unseen=unseen, learner=learner) for each in asked]
    predicted = torch.nonzero(dynamics.predicted.flatten()).flatten().tolist()
    return tuple(
        ColumnErrors(
            names[index],
            tuple(asked),
            tuple(float(each.predicted[index] * units[index]) for each in found),
            tuple(float(each.unchanged[index] * units[index]) for each in found),
        )
        for index in predicted
    )
