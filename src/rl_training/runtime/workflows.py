"""Door: evaluating, predicting with and resuming checkpoints."""

from rl_training.runs.evaluate import *  # noqa: F403
from rl_training.runs.resume import *  # noqa: F403
