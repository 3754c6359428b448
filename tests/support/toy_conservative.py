"""Critics with a handful of numbers and batches to train them on, for tests with known answers."""

import torch
from torch import Tensor, nn

from rl_training.algorithms.cql import CQL
from rl_training.models.critics import QEnsemble
from rl_training.models.models import MLPSACModel


def doubles(values: object) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


class TwoBins(QEnsemble):
    """Q(a) = values[0] for a < 0 and values[1] for a >= 0, for each of two critics."""

    def __init__(self) -> None:
        nn.Module.__init__(self)  # no networks: a table
        self.values = nn.Parameter(torch.zeros(2, 2))

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.values[:, (actions[..., 0] >= 0).long()]

    def many(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self(obs, actions)


class StateTable(QEnsemble):
    """Q(s, a) = values[s] for one-hot states, for each of two critics."""

    def __init__(self, num_states: int) -> None:
        nn.Module.__init__(self)  # no networks: a table
        self.values = nn.Parameter(torch.zeros(2, num_states))

    def forward(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self.values @ obs.mT

    def many(self, obs: Tensor, actions: Tensor) -> Tensor:
        return self(obs, actions).unsqueeze(-1).expand(-1, -1, actions.shape[-2])


def model_with_critic(critic: QEnsemble, obs_dim: int) -> MLPSACModel:
    """One action dimension, a policy with weight zero on the observation, and the given critic."""
    model = MLPSACModel(obs_dim, 1, hidden_sizes=(4,), generator=torch.Generator().manual_seed(0))
    model.critic = critic
    with torch.no_grad():
        model.actor.net.output.weight.zero_()
        model.actor.net.output.bias.zero_()
    return model


def small_model(obs_dim: int = 3, action_dim: int = 2, seed: int = 0, **keywords: object) -> MLPSACModel:
    generator = torch.Generator().manual_seed(seed)
    return MLPSACModel(obs_dim, action_dim, **{"hidden_sizes": (16, 16), **keywords}, generator=generator)


def random_batch(
    rows: int = 12, obs_dim: int = 3, action_dim: int = 2, seed: int = 0, lead: tuple[int, ...] = ()
) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*lead, *shape, generator=generator)

    return {
        "obs": normal(rows, obs_dim),
        "actions": normal(rows, action_dim).tanh(),
        "rewards": normal(rows),
        "next_obs": normal(rows, obs_dim),
        "dones": (normal(rows) > 1.0).float(),
        "returns_to_go": normal(rows),
    }


def noise_for(learner: CQL, rows: int, seed: int = 1) -> dict[str, Tensor]:
    """Random numbers for one update, drawn apart from the learner's own."""
    generator = torch.Generator().manual_seed(seed)
    draw = {
        "normal": lambda shape: torch.randn(shape, generator=generator),
        "uniform": lambda shape: torch.rand(shape, generator=generator) * 2 - 1,
    }
    return {name: draw[kind](shape) for name, (kind, shape) in learner.noise_shapes(rows).items()}


def train_with_falling_rate(learner: CQL, batch: dict[str, Tensor], updates: int) -> None:
    """Constant data, learning rate falling linearly to 5 %."""
    for step in range(updates):
        learner.set_learning_rate_scale(1.0 - 0.95 * step / updates)
        learner.update(batch, global_step=step)
