"""Conservative Q-Learning, CQL(H) for continuous actions (Kumar et al. 2020, arXiv:2006.04779)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal, Self

import torch
from pydantic import model_validator
from torch import Tensor

from rl_training.algorithms import conservative, losses
from rl_training.algorithms.learner import Batch, MetricTensors, Noise, NoiseShapes
from rl_training.algorithms.losses import check_subset, random_subset
from rl_training.algorithms.recipe import Recipe
from rl_training.algorithms.sac import SAC, SACConfig, sac_loss
from rl_training.config import setting
from rl_training.config.data import OfflineFields
from rl_training.core.schema import MAX_SAMPLES
from rl_training.models.actors import SquashedGaussian, squashed_log_prob, squashed_sample
from rl_training.models.models import MLPSACModel, SACNetworkConfig

Source = Literal["uniform", "next", "current"]


class CQLConfig(SACConfig):
    """Keywords of CQL and Cal-QL beside SAC's."""

    cql_alpha: float = setting(5.0, "weight of the conservative term", gt=0)
    cql_alpha_online: float | None = setting(
        None,
        "weight of the conservative term in an online phase; 0 leaves it out (SAC's loss); none: cql_alpha",
        ge=0,
    )
    num_cql_samples: int = setting(10, "actions drawn per state from each source", ge=1, most=MAX_SAMPLES)
    action_sources: tuple[Source, ...] = setting(
        ("uniform", "next", "current"),
        "where the actions of the conservative term come from: uniform, the policy at s, the policy at s'",
    )
    importance_weights: bool = setting(
        True,
        "correct for the density of each drawn action; false: a plain log-sum-exp with the data's action",
    )
    cql_temperature: float = setting(1.0, "temperature of the log-sum-exp", gt=0)
    clip_diff_min: float | None = setting(None, "smallest conservative gap of one state; none: no limit")
    clip_diff_max: float | None = setting(None, "largest conservative gap of one state; none: no limit")
    lagrange: bool = setting(False, "learn a multiplier that holds the gap near target_gap")
    target_gap: float = setting(1.0, "gap that the multiplier aims at (it contains the log of the draws)")
    lagrange_form: Literal["gap", "weighted"] = setting(
        "gap", "gap: multiplier * weight * (gap - target); weighted: multiplier * (weight * gap - target)"
    )
    backup_entropy: bool = setting(False, "put SAC's entropy bonus into the Bellman target")
    max_target_backup: bool = setting(False, "bootstrap from the best of num_cql_samples next actions")
    max_target_order: Literal["max_min", "min_max"] = setting(
        "max_min", "best action of the critics' minimum, or minimum of the critics' best actions"
    )
    subset_size: int | None = setting(
        None, "critics drawn anew per update, whose minimum is the target; none: all of them", ge=1
    )
    bc_steps: int = setting(0, "first updates in which the actor imitates the data instead of Q", ge=0)

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if not self.action_sources or len(set(self.action_sources)) < len(self.action_sources):
            raise ValueError(
                f"action_sources must name at least one source, each once, got {list(self.action_sources)}"
            )
        low, high = self.clip_diff_min, self.clip_diff_max
        if low is not None and high is not None and low > high:
            raise ValueError(f"clip_diff_min must be <= clip_diff_max ({high}), got {low}")
        if self.backup_entropy and self.max_target_backup and self.max_target_order == "min_max":
            raise ValueError(
                "max_target_order must be max_min with backup_entropy (min_max picks another action for each "
                "critic), got 'min_max'"
            )
        return self


class CQL(SAC):
    """SAC whose critics are pushed down on actions away from the data and up on the data's actions."""

    config_class = CQLConfig
    config: CQLConfig
    takes_actions = ("numbers",)
    critic_moves_first: ClassVar[bool] = False  # all losses of one update see the same parameters

    def setup(self) -> None:
        super().setup()
        self.gaussian = self.part("actor", SquashedGaussian)
        self.policy_sources = [name for name in ("next", "current") if name in self.config.action_sources]
        self.num_uniform = self.config.num_cql_samples if "uniform" in self.config.action_sources else 0
        self.weight = self.config.cql_alpha
        if self.config.subset_size is not None:
            check_subset(self.config.subset_size, self.critic.num_critics)
        if self.config.lagrange:
            start = 1.0 if self.config.lagrange_form == "gap" else 0.0
            self.log_multiplier = torch.tensor(start, device=self.device, requires_grad=True)
            self.scalars["log_multiplier"] = self.log_multiplier
            self.add_optimizer("lagrange", [self.log_multiplier], "critic")

    @property
    def is_conservative(self) -> bool:
        """Whether the term is there at all: not in an online phase with `cql_alpha_online: 0`."""
        return self.weight > 0

    def go_online(self, progress: float) -> None:
        online_weight = self.config.cql_alpha_online
        if not self.online and online_weight is not None:
            self.weight = online_weight
            if not self.is_conservative:
                own = ("cql_", "calibrat", "returns_to_go", "lagrange")
                self.last_metrics = {
                    name: value for name, value in self.last_metrics.items() if not name.startswith(own)
                }
        super().go_online(progress)

    def noise_shapes(self, batch_size: int) -> NoiseShapes:
        draws = (batch_size, self.config.num_cql_samples, self.model.action_dim)
        shapes = dict(super().noise_shapes(batch_size))
        if self.config.subset_size is not None:
            shapes["subset"] = ("uniform", (self.critic.num_critics,))
        if self.config.max_target_backup:
            shapes["next"] = ("normal", draws)
        if not self.is_conservative:
            return shapes
        shapes |= {f"proposal_{name}": ("normal", draws) for name in self.policy_sources}
        if self.num_uniform:
            shapes["proposal_uniform"] = ("uniform", draws)
        return shapes

    def stage(self) -> str:
        due = super().stage()
        return "bc" if due == "full" and self.updates < self.config.bc_steps else due

    def step(self, batch: Batch, noise: Noise, stage: str) -> MetricTensors:
        metrics = super().step(batch, noise, stage)
        if self.config.lagrange and self.is_conservative:
            # The term is linear in the gap: the critics' mean gap gives the mean of their dual losses.
            alpha_prime = conservative.multiplier(self.log_multiplier)
            self.minimize("lagrange", -self.lagrange_penalty(metrics["cql_gap"], alpha_prime))
            metrics["lagrange_multiplier"] = alpha_prime.detach()
        return metrics

    def critic_loss(self, batch: Batch, noise: Noise) -> tuple[Tensor, MetricTensors]:
        """SAC's regression plus the conservative term; one pass serves the data's and the drawn actions."""
        if not self.is_conservative:
            return super().critic_loss(batch, noise)
        with torch.no_grad():
            target = self.value_target(batch, noise)
            drawn, log_density = self.draw_actions(batch, noise)
        actions = torch.cat([drawn, batch["actions"].unsqueeze(-2)], -2)
        q = conservative.values_in_blocks(self.critic, batch["obs"], actions)
        q_data = q[..., -1]
        q_drawn, metrics = self.calibrate(q[..., :-1], batch)
        gap = conservative.conservative_gap(
            q_drawn,
            q_data,
            log_density.unsqueeze(-3) if self.config.importance_weights else None,
            temperature=self.config.cql_temperature,
            clip_min=self.config.clip_diff_min,
            clip_max=self.config.clip_diff_max,
        )
        if self.config.lagrange:
            alpha_prime = conservative.multiplier(self.log_multiplier.detach())
            penalty = self.lagrange_penalty(gap, alpha_prime.unsqueeze(-1)).sum(-1)
        else:
            penalty = (self.weight * gap).sum(-1)
        metrics |= {
            "target_q_mean": target.mean(-1),
            "cql_penalty": penalty.detach(),
            "cql_gap": gap.detach().mean(-1),
        }
        return losses.critic_mse(q_data, target) + penalty, metrics

    def value_target(self, batch: Batch, noise: Noise) -> Tensor:
        """r + gamma (1 - d) min_i Q_i(s', a'), a' drawn from the online actor; or the best of several a'."""
        draws = noise["next"] if self.config.max_target_backup else noise["next"].unsqueeze(-2)
        actions, logprobs = self.draws_at(batch["next_obs"], draws)
        next_q = self.next_values(batch["next_obs"], actions, noise)
        value = conservative.best_of_draws(next_q, self.config.max_target_order)
        if self.config.backup_entropy:
            chosen = next_q.amin(-3).argmax(-1, keepdim=True)
            value = losses.soft_value(value, logprobs.gather(-1, chosen).squeeze(-1), self.alpha())
        return losses.td_target(batch["rewards"], batch["dones"], value, self.discount(batch))

    def next_values(self, obs: Tensor, actions: Tensor, noise: Noise) -> Tensor:
        """Target values `[*S, E, B, n]` of several actions per state, of all critics or of a random few."""
        values = conservative.values_in_blocks(self.target_critic, obs, actions)
        if self.config.subset_size is None:
            return values
        subset = random_subset(noise["subset"], self.config.subset_size)
        return values.take_along_dim(subset.unsqueeze(-1).unsqueeze(-1), -3)

    def draw_actions(self, batch: Batch, noise: Noise) -> tuple[Tensor, Tensor]:
        """Actions `[*S, B, N, A]` of all sources, uniform ones first, and the log density of each."""
        states = {"next": batch["next_obs"], "current": batch["obs"]}
        drawn = [self.draws_at(states[name], noise[f"proposal_{name}"]) for name in self.policy_sources]
        if self.num_uniform:
            uniform = noise["proposal_uniform"]
            density = conservative.uniform_log_density(self.model.action_dim)
            drawn.insert(0, (uniform, torch.full_like(uniform[..., 0], density)))
        return torch.cat([actions for actions, _ in drawn], -2), torch.cat([each for _, each in drawn], -1)

    def draws_at(self, obs: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Several actions per state from one pass of the actor: `[*S, B, n, A]`, `[*S, B, n]`."""
        mean, log_std = self.gaussian.distribution(obs)
        return squashed_sample(mean.unsqueeze(-2), log_std.unsqueeze(-2), noise)

    def calibrate(self, q_drawn: Tensor, batch: Batch) -> tuple[Tensor, MetricTensors]:
        """What Cal-QL changes: the values that enter the conservative term, and metrics about them."""
        return q_drawn, {}

    def lagrange_penalty(self, gap: Tensor, alpha_prime: Tensor) -> Tensor:
        c = self.config
        return conservative.lagrange_penalty(gap, alpha_prime, self.weight, c.target_gap, c.lagrange_form)

    def actor_loss(self, batch: Batch, noise: Noise, stage: str) -> tuple[Tensor, Tensor]:
        """SAC's; during the first `bc_steps` updates log pi(a_data|s) stands in for Q."""
        if stage != "bc":
            return super().actor_loss(batch, noise, stage)
        mean, log_std = self.gaussian.distribution(batch["obs"])
        _, logprobs = squashed_sample(mean, log_std, noise["current"])
        imitation = squashed_log_prob(batch["actions"], mean, log_std)
        return losses.soft_actor_loss(imitation, logprobs, self.alpha()), logprobs


def cql_loss(inputs: Mapping[str, Tensor | float]) -> dict[str, Tensor]:
    """From the inputs of `sac_loss`, `cql_alpha` and the gaps it weighs, `cql_penalty_q1 cql_penalty_q2`."""
    gaps = [torch.as_tensor(inputs[f"cql_penalty_q{critic}"]).mean() for critic in (1, 2)]
    penalty = inputs["cql_alpha"] * torch.stack(gaps).sum()
    values = sac_loss(inputs)
    return values | {"critic_loss": values["critic_loss"] + penalty, "cql_penalty": penalty}


class CQLRunConfig(CQLConfig, SACNetworkConfig, OfflineFields):
    """Every setting of a CQL run."""

    @model_validator(mode="after")
    def _subset_fits(self) -> Self:
        if self.subset_size is not None:
            check_subset(self.subset_size, self.num_critics)
        return self


RECIPE = Recipe(
    "cql", CQL, MLPSACModel, CQLRunConfig, title="Conservative Q-learning", papers=("2006.04779",)
)
