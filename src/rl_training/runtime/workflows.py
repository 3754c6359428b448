"""Door: evaluating, predicting with and resuming checkpoints."""

from rl_training.runs.resume import *  # noqa: F403
