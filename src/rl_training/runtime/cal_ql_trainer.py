"""Door: `train_cal_ql(config)`."""

from rl_training.algorithms.cal_ql import RECIPE
from rl_training.runs.train import train_function

__all__ = ["RECIPE", "train_cal_ql"]
train_cal_ql = train_function(RECIPE.name)
