"""Door: loading datasets."""

from rl_training.data.read import load_transition_dataset as load_transition_dataset
