"""Door: `train_iql(config)`."""

from rl_training.algorithms.iql import RECIPE
from rl_training.runs.train import train_function

__all__ = ["RECIPE", "train_iql"]
train_iql = train_function(RECIPE.name)
