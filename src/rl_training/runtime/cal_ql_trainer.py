"""Door: `train_cal_ql(config)`."""

from rl_training.core.lazy import trainer_door

__getattr__, __dir__ = trainer_door("cal_ql")
