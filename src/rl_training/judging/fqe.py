"""Fitted Q evaluation: what would this policy earn? (Le et al. 2019, arXiv:1903.08738)

Q <- r + gamma (1 - d) Q'(s', a') with a' the judged policy's action, or the mean over several draws of it.
Members of the ensemble see bootstrap resamples of the episodes (Hao et al. 2021, arXiv:2102.03607), so that
one training gives an interval, and the episodes that a member has not seen are held-out data for it. Policies
are the seed axis: all of them, and the logged behaviour itself, are one batched computation on the same rows.
"""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, Losses, Noise, NoiseShapes
from rl_training.config import setting
from rl_training.judging.fitting import resample_weights
from rl_training.models.critics import QEnsemble
from rl_training.models.models import PolicyModel
from rl_training.models.network_settings import NetworkConfig, Norm


class ValueNetworks(NetworkConfig):
    """Sizes of the ensemble."""

    members: int = setting(8, "value networks", ge=1)
    # It keeps values bounded where the policy leaves the data; without it and without clipped targets the
    # recursion diverges on narrow logs.
    layer_norm: Norm = setting(True, "layer normalisation of hidden layers")


class ValueModel(PolicyModel):
    """An ensemble of values; it judges and does not act."""

    config_class = ValueNetworks
    config: ValueNetworks
    critic: QEnsemble

    def build(self, generator: torch.Generator | None) -> None:
        sizes = (self.obs_dim, self.action_dim, self.config.members)
        self.critic = QEnsemble(*sizes, self.config.plan("critic"), generator=generator)


class FQEConfig(LearnerConfig):
    """Keywords of fitted Q evaluation."""

    tau: float = setting(0.05, "share of the networks that their targets take over per update", gt=0, le=1)
    episodes: int = setting(..., "episodes of the log", ge=1)
    resample_seed: int = setting(0, "seed of the bootstrap over episodes", ge=0)
    terminal_value: float = setting(0.0, "value after a termination, in the scaled rewards' units")
    lowest: float = setting(..., "smallest value that targets may take")
    highest: float = setting(..., "largest value that targets may take")


class FQE(Learner):
    """Takes `next_actions` of the judged policy (one draw or several side by side, `[*S, B, draws * A]`), the
    `episodes` of the rows, and which rows are `usable`."""

    config_class = FQEConfig
    config: FQEConfig
    needs: ClassVar[frozenset[str]] = frozenset({"next_actions", "episodes", "usable"})

    def setup(self) -> None:
        self.critic = self.part("critic", QEnsemble)
        self.target_critic = self.add_target("critic", self.critic)
        self.add_optimizer("critic", self.critic.parameters(), "critic")
        weights = resample_weights(self.critic.num_critics, self.config.episodes, self.config.resample_seed)
        self.scalars["resamples"] = weights.to(self.device)

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {}

    def step(self, batch: Batch, noise: Noise, stage: str) -> Losses:
        with torch.no_grad():
            target = self.value_target(batch)
        errors = self.critic(batch["obs"], batch["actions"]) - target
        weights = self.row_weights(batch["episodes"]) * batch["usable"].unsqueeze(-2)
        loss = (weights * errors.square()).mean(-1).sum(-1)
        self.minimize("critic", loss)
        self.update_target("critic", self.critic, self.config.tau)
        return {"critic_loss": loss.detach(), "target_q_mean": target.mean((-2, -1))}

    def value_target(self, batch: Batch) -> Tensor:
        """r + gamma (Q' where it goes on, the terminal value where it ended), each member its own."""
        actions = batch["next_actions"]
        draws = actions.reshape(*actions.shape[:-1], -1, self.critic.action_dim)
        following = policy_values(self.target_critic, batch["next_obs"], draws)
        dones = batch["dones"].unsqueeze(-2)
        following = torch.where(dones > 0, self.config.terminal_value, following)
        discount = self.discount(batch)
        factor = discount if isinstance(discount, float) else discount.unsqueeze(-2)
        target = batch["rewards"].unsqueeze(-2) + factor * following
        clipped: Tensor = target.clamp(self.config.lowest, self.config.highest)
        return clipped

    def row_weights(self, episodes: Tensor) -> Tensor:
        """How often each member sees the episodes of these rows: `[*S, B]` -> `[*S, E, B]`."""
        resamples = self.scalars["resamples"]
        shape = (*resamples.shape[:-1], episodes.shape[-1])
        return resamples.gather(-1, episodes.unsqueeze(-2).expand(shape))


def policy_values(critic: QEnsemble, obs: Tensor, actions: Tensor) -> Tensor:
    """Mean Q over a policy's actions: `[*S, B, O]`, `[*S, B, draws, A]` -> `[*S, E, B]`."""
    if actions.shape[-2] == 1:  # a single call without the first layer cut in two
        return critic(obs, actions.squeeze(-2))  # type: ignore[no-any-return]  # a module's call
    return critic.many(obs, actions).mean(-1)
