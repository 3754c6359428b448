"""An actor whose random actions are chosen by a critic (Wang et al. 2020, section 3.3)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from rl_training.models.actors import Actor, GaussianActor
from rl_training.models.critics import QEnsemble


class CriticWeighted(Actor):
    """Of `samples` drawn actions one is kept, with probability softmax(min Q / temperature)."""

    kind = "critic_weighted"
    draws = "several draws of the actor, one of them kept with probability softmax(Q / temperature)"

    def __init__(self, actor: GaussianActor, critic: QEnsemble, samples: int, temperature: float) -> None:
        nn.Module.__init__(self)  # the networks exist already: nothing of Actor's is built
        self.obs_dim, self.action_dim = actor.obs_dim, actor.action_dim
        self.actor, self.critic = actor, critic
        self.samples, self.temperature = samples, temperature

    @property
    def noise_size(self) -> int:
        return self.samples * self.action_dim + 1

    def mode(self, obs: Tensor) -> Tensor:
        return self.actor.mode(obs)

    def draw(self, obs: Tensor, noise: Tensor) -> Tensor:
        shape = (self.samples, self.action_dim)
        candidates = draw_many(
            self.actor, self.actor.distribution(obs), noise[..., :-1].reshape(*obs.shape[:-1], *shape)
        )
        return resample(candidates, self.probabilities(obs, candidates), noise[..., -1])

    def probabilities(self, obs: Tensor, candidates: Tensor) -> Tensor:
        """softmax(Q / temperature) of each candidate, `[*S, B, N]`."""
        return torch.softmax(lowest_values(self.critic, obs, candidates) / self.temperature, dim=-1)


def resample(candidates: Tensor, probabilities: Tensor, normal: Tensor) -> Tensor:
    """One of the N candidates `[*S, B, N, A]` per row, by N(0, 1) numbers `[*S, B]` through their CDF."""
    uniform = torch.special.ndtr(normal).unsqueeze(-1)
    chosen = (probabilities.cumsum(-1) < uniform).sum(-1).clamp(max=probabilities.shape[-1] - 1)
    index = chosen[..., None, None].expand(*chosen.shape, 1, candidates.shape[-1])
    return candidates.gather(-2, index).squeeze(-2)


def draw(actor: GaussianActor, policy: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
    """One action per state from mean and log std and noise `[*S, B, A]`; what is not squashed is clipped."""
    return actor.sample(*policy, noise)[0].clamp(-1.0, 1.0)


def draw_many(actor: GaussianActor, policy: tuple[Tensor, Tensor], noise: Tensor) -> Tensor:
    """N actions per state from noise `[*S, B, N, A]` and one distribution per state."""
    return draw(actor, policy, noise.movedim(-2, 0)).movedim(0, -2)


def lowest_values(critic: QEnsemble, obs: Tensor, actions: Tensor) -> Tensor:
    """The minimum over critics for N actions per state: `[*S, B, N, A]` -> `[*S, B, N]`."""
    return critic.many(obs, actions).amin(-3)
