"""Door: `train_td3_bc(config)`."""

from rl_training.algorithms.td3_bc import RECIPE
from rl_training.runs.train import train_function

__all__ = ["RECIPE", "train_td3_bc"]
train_td3_bc = train_function(RECIPE.name)
