"""Door: `train_tqc(config)`."""

from rl_training.algorithms.tqc import RECIPE
from rl_training.runs.train import train_function

__all__ = ["RECIPE", "train_tqc"]
train_tqc = train_function(RECIPE.name)
