"""Door: `train_td3_bc(config)`."""

from rl_training.core.lazy import trainer_door

__getattr__, __dir__ = trainer_door("td3_bc")
