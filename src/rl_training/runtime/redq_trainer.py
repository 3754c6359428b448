"""Door: `train_redq(config)`."""

from rl_training.algorithms.redq import RECIPE
from rl_training.runs.train import train_function

__all__ = ["RECIPE", "train_redq"]
train_redq = train_function(RECIPE.name)
