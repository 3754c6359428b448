"""Door: the errors a user can catch."""

from rl_training.core.errors import *  # noqa: F403
