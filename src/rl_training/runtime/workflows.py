"""Door: evaluating, predicting with and resuming checkpoints."""

from rl_training.core.lazy import door

__getattr__, __dir__ = door(__name__, "rl_training.experiment.workflows")
