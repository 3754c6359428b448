"""Door: `train_bc(config)`."""

from rl_training.algorithms.bc import RECIPE
from rl_training.runs.train import train_function

__all__ = ["RECIPE", "train_bc"]
train_bc = train_function(RECIPE.name)
