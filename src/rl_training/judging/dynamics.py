"""A learned model of what happens next, and what a policy earns in it: the second opinion.

An ensemble of networks, each a Gaussian over the change of state and the reward, and a probability of
termination where the log has any; members see bootstrap resamples of episodes.
"""

from __future__ import annotations

from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from rl_training.algorithms.learner import Batch, Learner, LearnerConfig, Losses, Noise, NoiseShapes
from rl_training.config import setting
from rl_training.judging.fitting import resample_weights
from rl_training.models.distributions import gaussian_log_prob
from rl_training.models.models import PolicyModel
from rl_training.models.network_settings import NetworkConfig
from rl_training.models.networks import MLP

LOG_STD_RANGE = (-5.0, 1.0)


class DynamicsNetworks(NetworkConfig):
    """Sizes of the ensemble."""

    members: int = setting(5, "dynamics networks", ge=1)


class DynamicsModel(PolicyModel):
    """Networks (s, a) -> change of state and reward, with their spread, and (s, a, s') -> odds of an end.

    Ends are mostly a matter of where a step leads (a robot that has fallen), so s' is asked as well.
    """

    config_class = DynamicsNetworks
    config: DynamicsNetworks
    net: MLP
    end_net: MLP

    def build(self, generator: torch.Generator | None) -> None:
        outputs = 2 * (self.obs_dim + 1)
        inputs, lead = self.obs_dim + self.action_dim, (self.config.members,)
        plan = self.config.plan("critic")
        self.net = MLP(inputs, outputs, plan, lead, generator=generator)
        self.end_net = MLP(inputs + self.obs_dim, 1, plan, lead, generator=generator)

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, Tensor]:
        """`[*E, B, O]`, `[*E, B, A]` -> mean and log std of change and reward, `[E, B, O + 1]`."""
        mean, spread = self.net(_joined(obs, actions)).chunk(2, dim=-1)
        low, high = LOG_STD_RANGE
        return mean, low + (high - low) * spread.sigmoid()

    def end_odds(self, obs: Tensor, actions: Tensor, next_obs: Tensor) -> Tensor:
        """Log odds that the step ended the episode, `[E, B]`."""
        odds: Tensor = self.end_net(_joined(obs, actions, next_obs)).squeeze(-1)
        return odds


def _joined(*parts: Tensor) -> Tensor:
    """Side by side, with an axis for members where rows come without one."""
    inputs = torch.cat(parts, dim=-1)
    return inputs if inputs.dim() > 2 else inputs.unsqueeze(0)


class DynamicsConfig(LearnerConfig):
    """Keywords of the dynamics model."""

    episodes: int = setting(..., "episodes of the log", ge=1)
    resample_seed: int = setting(0, "seed of the bootstrap over episodes", ge=0)
    spreads: tuple[float, ...] = setting(..., "std of each change of state and of the reward", gt=0)


class Dynamics(Learner):
    """Maximum likelihood of the logged successors and rewards."""

    config_class = DynamicsConfig
    config: DynamicsConfig
    model: DynamicsModel
    needs: ClassVar[frozenset[str]] = frozenset({"episodes"})

    def setup(self) -> None:
        self.net = self.model
        self.add_optimizer("model", self.model.parameters(), "critic", weight_decay=1e-5)
        members = self.model.config.members
        self.scalars["resamples"] = resample_weights(members, self.config.episodes, self.config.resample_seed)
        self.scalars["spreads"] = torch.tensor(self.config.spreads)

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        return {}

    def step(self, batch: Batch, noise: Noise, stage: str) -> Losses:
        mean, log_std = self.net(batch["obs"], batch["actions"])
        ends = self.net.end_odds(batch["obs"], batch["actions"], batch["next_obs"])
        change = torch.cat([batch["next_obs"] - batch["obs"], batch["rewards"].unsqueeze(-1)], dim=-1)
        surprise = -gaussian_log_prob(change / self.scalars["spreads"], mean, log_std)
        surprise = surprise + F.binary_cross_entropy_with_logits(
            ends, batch["dones"].expand(ends.shape), reduction="none"
        )
        weights = self.scalars["resamples"][:, batch["episodes"]]
        loss = (weights * surprise).mean(-1).sum(-1)
        self.minimize("model", loss)
        return {"model_loss": loss.detach()}
