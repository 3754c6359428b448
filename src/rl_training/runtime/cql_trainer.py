"""Door: `train_cql(config)`."""

from rl_training.core.lazy import trainer_door

__getattr__, __dir__ = trainer_door("cql")
