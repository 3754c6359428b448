"""Signals of time inside a model of the plant.

A network that predicted lags would let them drift apart from what they lag. So the model predicts columns,
and signals follow from these by the program that computed them over the log, and computes them where the
policy acts. Gradients go through it, and so through what past actions do to later steps.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rl_training.core.signals import Signals
from rl_training.policies.policy import Policy
from rl_training.policies.torch_signals import TorchSignals


class ImaginedSignals:
    """The signals of a policy, in the units of its learner."""

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
