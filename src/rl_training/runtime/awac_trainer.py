"""Door: `train_awac(config)`."""

from rl_training.algorithms.awac import RECIPE
from rl_training.runs.train import train_function

__all__ = ["RECIPE", "train_awac"]
train_awac = train_function(RECIPE.name)
