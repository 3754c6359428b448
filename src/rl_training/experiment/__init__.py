"""Door: what was here is in `rl_training.runs`."""
