"""What a run's own critic says of the log: the optimism that training may leave behind."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from rl_training.algorithms.recipe import get_recipe
from rl_training.core.checkpoints import load_run_state
from rl_training.core.train_config import parse_config
from rl_training.judging.log import Float64Array, FloatArray, JudgedLog
from rl_training.models.models import CriticModel
from rl_training.policies.policy import Policy
from rl_training.policies.saved import NOT_FOR_ACTING, policy_of_state

_CHUNK = 16_384
_UNREAD = tuple(part for part in NOT_FOR_ACTING if part != "learner")


@dataclass(frozen=True)
class TrainedCritic:
    """A critic as training left it, asked in the user's units."""

    model: CriticModel
    policy: Policy
    gamma: float
    reward_scale: float
    by_time: bool = False

    def discounts_like(self, log: JudgedLog) -> bool:
        """Whether its values count the future as a judgement of this log does."""
        return self.gamma == log.gamma and self.by_time == (log.discounts is not None)

    @torch.no_grad()
    def values(self, obs: FloatArray, actions: FloatArray) -> Float64Array:
        """Q of every row, the mean over the critics."""
        unit = np.clip(self.policy.spaces.to_unit(actions), -1.0, 1.0)
        parts = []
        for start in range(0, len(obs), _CHUNK):
            rows = slice(start, start + _CHUNK)
            prepared = self.policy.prepared(torch.from_numpy(obs[rows]).to(self.policy.dtype)).float()
            found = self.model.q_values(prepared, torch.from_numpy(unit[rows]).float())
            each = found.mean(-1) if isinstance(found, torch.Tensor) else torch.stack(found).mean(0)
            parts.append(each.double())
        values: Float64Array = torch.cat(parts).numpy() / self.reward_scale
        return values


def trained_critic(path: str | Path) -> TrainedCritic | None:
    """The critic of a run or checkpoint; none where there is none whose units can be told."""
    state = load_run_state(path, skip=_UNREAD)
    config = parse_config(state["config"])
    recipe, settings = get_recipe(config.algo), config.run_config().to_dict()
    clipped = settings.get("reward_clip") is not None
    changed = clipped or settings.get("reward_shift") or settings.get("normalize_reward")
    if changed or not issubclass(recipe.model, CriticModel):
        return None
    policy = policy_of_state(state, source=path)
    model = recipe.model.from_config(
        config.run_config(), policy.spaces.obs_dim, policy.spaces.action_dim, None
    )
    saved = state["learner"]["tensors"]
    model.load_state_dict({name: saved[f"model.{name}"] for name in model.state_dict()})
    scale, by_time = float(settings.get("reward_scale", 1.0)), bool(settings.get("discount_by_time"))
    return TrainedCritic(model, policy, float(settings["gamma"]), scale, by_time)
