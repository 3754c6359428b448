"""Door: `train_crr(config)`."""

from rl_training.algorithms.crr import RECIPE
from rl_training.runs.train import train_function

__all__ = ["RECIPE", "train_crr"]
train_crr = train_function(RECIPE.name)
