"""TD3+BC (Fujimoto and Gu 2021, arXiv:2106.06860): TD3 whose actor is also drawn to the data."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from rl_training.algorithms.bc import imitation_error
from rl_training.algorithms.learner import Batch, MetricTensors
from rl_training.algorithms.losses import named_tensors, twin_losses, value_weight
from rl_training.algorithms.recipe import Recipe
from rl_training.algorithms.td3 import PulledTD3, TD3Config, value_loss
from rl_training.algorithms.td3 import smoothed_actions as smoothed_actions  # was public here before TD3 was
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.models.actors import Actor
from rl_training.models.models import MLPTD3Model
from rl_training.models.networks import NetworkConfig


class TD3BCConfig(TD3Config):
    """Keywords of TD3+BC beside TD3's."""

    alpha: float = setting(2.5, "weight of the values against the pull towards the data's actions", gt=0)


class TD3BC(PulledTD3):
    """TD3 with an actor between its values and the data."""

    config_class = TD3BCConfig
    config: TD3BCConfig
    delayed_metrics = ("actor_loss", "bc_loss", "q_weight")

    def acting(self) -> Actor:
        """The plain actor, as its paper's: where it goes online, whoever collects adds the noise."""
        return self.actor

    def policy_loss(self, q: Tensor, actions: Tensor, batch: Batch) -> tuple[Tensor, MetricTensors]:
        imitation = imitation_error(actions, batch["actions"])
        weight = value_weight(q, self.config.alpha)
        loss = weighted_actor_loss(q, self.pull * imitation, weight)
        return loss, {"bc_loss": imitation.detach(), "q_weight": weight}


def weighted_actor_loss(q: Tensor, pull: Tensor, weight: Tensor | float) -> Tensor:
    """-lambda E[Q(s, pi(s))] + the pull towards the data: `[*S, B]`, `[*S]`, `[*S]` -> `[*S]`."""
    return pull + weight * value_loss(q)


def td3_bc_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From `q1_values q2_values target_q_values actor_q_values policy_actions actions alpha`.

    `actor_q_values` are the first critic's at the policy's actions; `alpha` defaults to 2.5.
    """
    named = named_tensors(inputs)
    imitation = imitation_error(named["policy_actions"], named["actions"])
    weight = value_weight(named["actor_q_values"], inputs.get("alpha", 2.5))
    return twin_losses(named) | {
        "actor_loss": weighted_actor_loss(named["actor_q_values"], imitation, weight),
        "bc_loss": imitation,
        "q_weight": weight,
    }


class TD3BCRunConfig(TD3BCConfig, NetworkConfig, OfflineFields):
    """Every setting of a TD3+BC run."""

    normalize_observations: bool = setting(
        True, "(obs - mean) / (std + 1e-3) over the data, saved with the policy"
    )


RECIPE = Recipe("td3_bc", TD3BC, MLPTD3Model, TD3BCRunConfig, title="TD3+BC", papers=("2106.06860",))
