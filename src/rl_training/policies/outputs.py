"""Everything that an exported policy gives for observations, in the order in which it gives it."""

from __future__ import annotations

from torch import Tensor, nn

from rl_training.policies.policy import Policy


class Outputs(nn.Module):
    """`action`, then `mean` and `log_std` where asked for, then `novelty` where the policy has a guard."""

    def __init__(self, policy: Policy, distribution: bool) -> None:
        super().__init__()
        self.policy, self.distribution = policy, distribution

    def forward(self, obs: Tensor) -> tuple[Tensor, ...]:
        action: Tensor = self.policy(obs)
        spread = self.policy.distribution(obs) if self.distribution else ()
        novelty = () if self.policy.guard is None else (self.policy.novelty(obs, action),)
        return (action, *spread, *novelty)


def output_names(policy: Policy, distribution: bool) -> tuple[str, ...]:
    spread = ("mean", "log_std") if distribution else ()
    return ("action", *spread, *(() if policy.guard is None else ("novelty",)))
