"""Door: `train_cql(config)`."""

from rl_training.algorithms.cql import RECIPE
from rl_training.runs.train import train_function

__all__ = ["RECIPE", "train_cql"]
train_cql = train_function(RECIPE.name)
