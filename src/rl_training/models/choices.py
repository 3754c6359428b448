"""Networks for actions that are choices, or choices beside numbers.

An encoded action holds a box as one number in [-1, 1] and a choice as a block of -1 and one +1
(`core/spaces.py`). The policy is a product over its parts, log pi(a|s) = sum of Gaussian and categorical log
probabilities; where everything is a choice, critics have one output per combination of levels.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import reduce
from itertools import accumulate, pairwise
from math import prod

import torch
from torch import Tensor, nn

from rl_training.core.errors import ConfigError
from rl_training.models.actors import (
    Actor,
    ActorOptions,
    GaussianActor,
    SigmoidStdGaussian,
    SquashedGaussian,
    StochasticActor,
    TanhMeanGaussian,
    UnboundedGaussian,
    check_dropout,
    gaussian_log_prob,
)
from rl_training.models.critics import QEnsemble, each_member
from rl_training.models.layers import dropout_scale
from rl_training.models.networks import Network, NetworkPlan, build_network

SMALLEST_UNIFORM = 1e-7
"""Guards the logarithms of Gumbel noise where single precision rounds a probability to 0 or 1."""


def one_hot(places: Tensor, levels: int, like: Tensor) -> Tensor:
    """The shares `[…, levels]` that choose those places: 0, and 1 at the place."""
    return (places.unsqueeze(-1) == torch.arange(levels, device=places.device)).to(like.dtype)


def best_of(values: Tensor) -> Tensor:
    """The block of the largest of `[…, levels]` values."""
    places = torch.arange(values.shape[-1], device=values.device)
    return as_block((values.argmax(-1, keepdim=True) == places).to(values.dtype))


def as_block(shares: Tensor) -> Tensor:
    """0 and 1 -> the block of an encoded action, -1 and 1."""
    return 2.0 * shares - 1.0


def as_shares(block: Tensor) -> Tensor:
    """The block of an encoded action -> 0 and 1."""
    return 0.5 * (block + 1.0)


def gumbel_max(logits: Tensor, uniform: Tensor) -> Tensor:
    """The place argmax(logit - log(-log u)), drawn with probability softmax(logits), u in (0, 1)."""
    u = uniform.clamp(SMALLEST_UNIFORM, 1.0 - SMALLEST_UNIFORM)
    return (logits - (-u.log()).log()).argmax(-1)


def entropy(log_probabilities: Tensor) -> Tensor:
    """-sum p log p over the last axis."""
    return -(log_probabilities.exp() * log_probabilities).sum(-1)


RULED_OUT = -1e9
"""Logit, log-probability or value of a level that may not be taken: finite, so that its share of 0 is 0."""


def allowed_levels(obs: Tensor, levels: Sequence[int]) -> list[Tensor]:
    """For each choice, which levels may be taken in these states, by the last numbers observed.

    A mask that rules out every level says nothing (`Spaces.allowed`).
    """
    sizes = [size for size in levels if size > 1]
    _, *masks = torch.split(obs, [obs.shape[-1] - sum(sizes), *sizes], dim=-1)
    return [mask >= (-(-mask).amin(-1, keepdim=True)).clamp(max=0.5) for mask in masks]


def blocks_of(levels: Sequence[int]) -> list[slice]:
    """Where the encoded numbers of each part stand; a part of one number is a box."""
    return [slice(*ends) for ends in pairwise(accumulate(levels, initial=0))]


def joint_shares(actions: Tensor, levels: Sequence[int]) -> Tensor:
    """Encoded choices `[…, A]` -> `[…, K]`: 1 for the combination of levels that was taken, else 0.

    The last choice counts fastest.
    """
    joint: Tensor | None = None
    for block in blocks_of(levels):
        shares = as_shares(actions[..., block])
        joint = shares if joint is None else (joint.unsqueeze(-1) * shares.unsqueeze(-2)).flatten(-2)
    assert joint is not None
    return joint


def joint_log_probabilities(values: Tensor, levels: Sequence[int]) -> Tensor:
    """Log-probabilities of independent choices `[…, A]` -> those of their combinations, `[…, K]`."""
    joint: Tensor | None = None
    for block in blocks_of(levels):
        each = values[..., block]
        joint = each if joint is None else (joint.unsqueeze(-1) + each.unsqueeze(-2)).flatten(-2)
    assert joint is not None
    return joint


def joint_actions(levels: Sequence[int]) -> Tensor:
    """Every combination of levels as an encoded action, `[K, A]`."""
    places = torch.cartesian_prod(*(torch.arange(each) for each in levels)).reshape(-1, len(levels))
    ones = torch.ones(())
    return torch.cat([as_block(one_hot(places[:, i], each, ones)) for i, each in enumerate(levels)], dim=-1)


def mixed_values(raw: Tensor, levels: Sequence[int]) -> Tensor:
    """A network's numbers, one per encoded number -> tanh of those of boxes, log-probabilities of levels."""
    parts = [
        raw[..., block].tanh() if size == 1 else raw[..., block].log_softmax(-1)
        for size, block in zip(levels, blocks_of(levels), strict=True)
    ]
    return torch.cat(parts, dim=-1)


def mixed_log_prob(actions: Tensor, values: Tensor, log_std: Tensor, levels: Sequence[int]) -> Tensor:
    """Sum of N(a; value, std) of boxes and of the log-probabilities of the levels taken."""
    total = torch.zeros_like(actions[..., 0])
    for size, block in zip(levels, blocks_of(levels), strict=True):
        taken = actions[..., block]
        if size == 1:
            total = total + gaussian_log_prob(taken, values[..., block], log_std[..., block])
        else:
            total = total + (as_shares(taken) * values[..., block]).sum(-1)
    return total


def masked_option(masked: bool) -> ActorOptions:
    """What a file says of an actor that heeds masks; of others nothing, as before there were any."""
    return {"masked": 1.0} if masked else {}


class GivenOutputs(Network):
    """Stands for the network of an actor that is asked with the outputs of another one."""

    def build(self, in_features: int, out_features: int) -> None:
        """There is nothing to build."""

    def forward(self, x: Tensor) -> Tensor:
        return x


FAMILIES: dict[str, type[GaussianActor]] = {
    each.kind: each for each in (SquashedGaussian, UnboundedGaussian, TanhMeanGaussian, SigmoidStdGaussian)
}


def box_actor(family: str, count: int, options: Mapping[str, float | None]) -> GaussianActor:
    """The Gaussians of `count` boxes, asked with the outputs of another network."""
    build: Callable[..., GaussianActor] = FAMILIES[family]
    made = build(1, count, NetworkPlan(hidden_sizes=()), **options)
    made.net = GivenOutputs(1, count, NetworkPlan())
    return made


class FactoredActor(StochasticActor):
    """One network with a Gaussian head for the boxes and logits for the levels of each choice.

    `levels` has a number per part of an action, 1 for a box. Its distribution is, in the order of encoded
    actions, the mean of a box and the log-probability of a level, and the log std of a box (0 for levels).
    """

    kind = "factored"
    draws = "boxes as their family draws them; of each choice the level with the largest log p + Gumbel noise"

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        plan: NetworkPlan | None = None,
        *,
        levels: Sequence[int],
        family: str = TanhMeanGaussian.kind,
        dropout: float = 0.0,
        masked: bool = False,
        generator: torch.Generator | None = None,
        **options: float | None,
    ) -> None:
        nn.Module.__init__(self)  # the outputs are not those of `Actor`: fewer for a level than for a box
        if family not in FAMILIES or sum(levels) != action_dim or min(levels) < 1:
            raise ConfigError(f"a factored actor of {family!r} and levels {list(levels)} makes no sense")
        self.obs_dim, self.action_dim = obs_dim, action_dim
        self.levels, self.family, self.dropout = list(levels), family, dropout
        self.masked = bool(masked)  # a file has it as a number
        self.blocks = blocks_of(levels)
        count = self.levels.count(1)
        self.boxes: GaussianActor | None = None
        self.box_outputs = count * FAMILIES[family].outputs_per_action
        if count:
            self.boxes = box_actor(family, count, options)
        outputs = self.box_outputs + action_dim - count
        self.net = build_network(obs_dim, outputs, plan or NetworkPlan(), generator=generator)
        check_dropout(self.net, dropout)

    def options(self) -> ActorOptions:
        own = {} if self.boxes is None else self.boxes.options()
        return {"levels": list(self.levels), "family": self.family, **masked_option(self.masked), **own}

    @property
    def dropout_size(self) -> int:
        return sum(self.net.hidden_sizes) if self.dropout else 0

    def split(self, encoded: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The numbers of all boxes, `[…, boxes]`, and the block of each choice."""
        boxes = [
            encoded[..., block] for block, size in zip(self.blocks, self.levels, strict=True) if size == 1
        ]
        choices = [
            encoded[..., block] for block, size in zip(self.blocks, self.levels, strict=True) if size > 1
        ]
        return torch.cat(boxes, dim=-1) if boxes else encoded[..., :0], choices

    def join(self, boxes: Tensor, choices: Sequence[Tensor]) -> Tensor:
        """The inverse of `split`."""
        left = iter(choices)
        numbers = iter(range(boxes.shape[-1]))
        parts = [
            boxes[..., (i := next(numbers)) : i + 1] if size == 1 else next(left) for size in self.levels
        ]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-1)

    def distribution(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return self.of_outputs(self.net(obs), obs)

    def heads(self, outputs: Tensor, obs: Tensor) -> tuple[Tensor, list[Tensor]]:
        """The network's numbers for the boxes, and the logits of each choice."""
        sizes = [self.box_outputs, *(size for size in self.levels if size > 1)]
        raw, *logits = torch.split(outputs, sizes, dim=-1)
        if self.masked:
            allowed = allowed_levels(obs, self.levels)
            logits = [torch.where(may, each, RULED_OUT) for may, each in zip(allowed, logits, strict=True)]
        return raw, logits

    def of_outputs(self, outputs: Tensor, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities are normalised here, once, for whoever draws and whoever weighs."""
        raw, logits = self.heads(outputs, obs)
        logs = [each.log_softmax(-1) for each in logits]
        if self.boxes is None:
            values = self.join(raw, logs)
            return values, torch.zeros_like(values)
        mean, log_std = self.boxes.distribution(raw)
        rows = log_std.shape[:-1]
        return self.join(mean, logs), self.join(
            log_std, [log_std.new_zeros(*rows, e.shape[-1]) for e in logs]
        )

    def sample(self, mean: Tensor, log_std: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Normal noise becomes uniform through its distribution function, for `gumbel_max`."""
        (centre, logs), (drawn, normals) = self.split(mean), self.split(noise)
        logprobs = torch.zeros_like(noise[..., 0])
        if self.boxes is not None:
            drawn, logprobs = self.boxes.sample(centre, self.split(log_std)[0], drawn)
        chosen = []
        for each, normal in zip(logs, normals, strict=True):
            shares = one_hot(gumbel_max(each, torch.special.ndtr(normal)), each.shape[-1], each)
            logprobs = logprobs + (shares * each).sum(-1)
            chosen.append(as_block(shares))
        return self.join(drawn, chosen), logprobs

    def density(self, actions: Tensor, mean: Tensor, log_std: Tensor) -> Tensor:
        (numbers, chosen), (centre, logs) = self.split(actions), self.split(mean)
        logprobs = torch.zeros_like(actions[..., 0])
        if self.boxes is not None:
            logprobs = self.boxes.density(numbers, centre, self.split(log_std)[0])
        for block, each in zip(chosen, logs, strict=True):
            logprobs = logprobs + (as_shares(block) * each).sum(-1)
        return logprobs

    def mode_of(self, mean: Tensor) -> Tensor:
        centre, logs = self.split(mean)
        boxes = centre if self.boxes is None else self.boxes.mode_of(centre)
        return self.join(boxes, [best_of(each) for each in logs])

    def mode(self, obs: Tensor) -> Tensor:
        """From logits as they are: their largest is that of the probabilities."""
        raw, logits = self.heads(self.net(obs), obs)
        if self.boxes is not None:
            raw = self.boxes.mode_of(self.boxes.distribution(raw)[0])
        return self.join(raw, [best_of(each) for each in logits])

    def log_prob(self, obs: Tensor, actions: Tensor, dropout_noise: Tensor | None = None) -> Tensor:
        if dropout_noise is None:
            return self.density(actions, *self.distribution(obs))
        outputs = self.net(obs, dropout_scale(dropout_noise, self.dropout))
        return self.density(actions, *self.of_outputs(outputs, obs))


class LevelCritics(QEnsemble):
    """Critics with one output per combination of levels: Q(s, a) = sum_k 1[a is k] Q_k(s)."""

    def __init__(
        self,
        obs_dim: int,
        levels: Sequence[int],
        num_critics: int,
        plan: NetworkPlan | None = None,
        *,
        cap: float | None = None,
        masked: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        nn.Module.__init__(self)  # an action is no input here
        self.obs_dim, self.action_dim, self.levels = obs_dim, sum(levels), list(levels)
        self.num_critics, self.num_outputs, self.cap, self.masked = num_critics, prod(levels), cap, masked
        plan = plan or NetworkPlan(part="critic")
        lead = () if num_critics == 1 else (num_critics,)  # one alone is a plain network
        self.net = build_network(obs_dim, self.num_outputs, plan, lead, generator=generator)

    def values(self, obs: Tensor) -> Tensor:
        """Q of every combination: `[*S, B, O]` -> `[*S, E, B, K]`."""
        if self.num_critics == 1:
            return self.possible(self.net(obs), obs).unsqueeze(-3)
        return self.possible(self.net(obs.unsqueeze(-3)), obs.unsqueeze(-3))

    def possible(self, values: Tensor, obs: Tensor) -> Tensor:
        """A network's values, of combinations that may not be taken as low as no other's."""
        values = self.capped(values)
        return torch.where(self.allowed(obs), values, RULED_OUT) if self.masked else values

    def allowed(self, obs: Tensor) -> Tensor:
        """Which combinations of levels may be taken: `[…, B, O]` -> `[…, B, K]`."""
        joint, *others = allowed_levels(obs, self.levels)
        for each in others:
            joint = (joint.unsqueeze(-1) & each.unsqueeze(-2)).flatten(-2)
        return joint

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.each(obs, actions.unsqueeze(-3))

    def each(self, obs: Tensor, actions: Tensor) -> Tensor:
        return (self.values(obs) * joint_shares(actions, self.levels)).sum(-1)

    def many(self, obs: Tensor, actions: Tensor) -> Tensor:
        shares = joint_shares(actions, self.levels).unsqueeze(-4)  # [*S, 1, B, N, K]
        return (self.values(obs).unsqueeze(-2) * shares).sum(-1)


class EpsilonGreedy(Actor):
    """The action of the largest value; with probability epsilon a random one, all equally likely."""

    kind = "epsilon_greedy"
    draws = "action = argmax Q; a draw takes any action with probability epsilon"

    def __init__(
        self,
        obs_dim: int,
        action_dim: int,
        plan: NetworkPlan | None = None,
        *,
        levels: Sequence[int],
        num_critics: int = 1,
        epsilon: float = 0.0,
        masked: bool = False,
        generator: torch.Generator | None = None,
    ) -> None:
        nn.Module.__init__(self)  # its network is that of the critics
        if sum(levels) != action_dim or min(levels) < 2:
            raise ConfigError(f"an epsilon-greedy actor of levels {list(levels)} makes no sense")
        self.obs_dim, self.action_dim, self.epsilon = obs_dim, action_dim, epsilon
        self.masked = bool(masked)
        self.critic = LevelCritics(
            obs_dim, levels, int(num_critics), plan, masked=masked, generator=generator
        )
        self.table = joint_actions(levels)

    @property
    def net(self) -> Network:  # type: ignore[override]  # it is that of the critics
        return self.critic.net

    @property
    def noise_size(self) -> int:
        return 2

    def options(self) -> ActorOptions:
        critic = self.critic
        own: ActorOptions = {"levels": critic.levels, "num_critics": critic.num_critics}
        return {**own, "epsilon": self.epsilon, **masked_option(self.masked)}

    def best(self, obs: Tensor) -> Tensor:
        """The number of the combination with the largest value, the mean over critics."""
        return self.critic.values(obs).mean(-3).argmax(-1)

    def mode(self, obs: Tensor) -> Tensor:
        critic = self.critic
        if critic.num_critics == 1:
            values = critic.possible(critic.net(obs), obs)
        elif torch.jit.is_tracing():  # type: ignore[attr-defined, no-untyped-call]  # knows no members
            values = critic.values(obs).mean(-3)
        else:
            members = [critic.possible(each, obs) for each in each_member(critic, obs)]
            values = reduce(torch.add, members) / critic.num_critics
        return as_shares(best_of(values)) @ self.table.to(obs.device, obs.dtype)

    def draw(self, obs: Tensor, noise: Tensor) -> Tensor:
        actions: Tensor = self(obs, noise)[0]
        return actions

    def forward(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Random actions by two normal numbers a row, and their log-probabilities."""
        best = self.best(obs)
        whether, which = torch.special.ndtr(noise).unbind(-1)
        count: int | Tensor = self.critic.num_outputs
        if self.critic.masked:  # of those that may be taken, the one of that number
            counted = self.critic.allowed(obs).cumsum(-1)
            count = counted[..., -1]
            place = torch.minimum((which * count).long(), count - 1).unsqueeze(-1)
            other = (counted > place).to(noise.dtype).argmax(-1)
        else:
            other = (which * count).long().clamp(max=count - 1)
        chosen = torch.where(whether < self.epsilon, other, best)
        share = self.epsilon / count + (1.0 - self.epsilon) * (chosen == best).to(noise.dtype)
        table = self.table.to(obs.device, obs.dtype)
        return table[chosen], share.log()
