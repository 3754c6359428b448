"""Door: `train_sac(config)`."""

from rl_training.algorithms.sac import RECIPE
from rl_training.runs.train import train_function

__all__ = ["RECIPE", "train_sac"]
train_sac = train_function(RECIPE.name)
