"""A deterministic actor that explores: its action plus noise."""

from __future__ import annotations

from torch import Tensor, nn

from rl_training.models.actors import Actor


class NoisyActor(Actor):
    """A random action is clip(a + sigma * noise, -1, 1) around the actor's own action a (TD3)."""

    kind = "noisy"
    draws = "the deterministic action plus sigma * noise, clipped to [-1, 1]"

    def __init__(self, actor: Actor, sigma: float) -> None:
        nn.Module.__init__(self)  # the network exists already: nothing of Actor's is built
        self.obs_dim, self.action_dim = actor.obs_dim, actor.action_dim
        self.actor, self.sigma = actor, sigma

    def mode(self, obs: Tensor) -> Tensor:
        return self.actor.mode(obs)

    def draw(self, obs: Tensor, noise: Tensor) -> Tensor:
        return (self.mode(obs) + self.sigma * noise).clamp(-1.0, 1.0)
