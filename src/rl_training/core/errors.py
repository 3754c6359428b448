"""Errors a user can act on: the message is the whole story, no traceback needed."""

from rl_training.config.errors import ConfigError, UserError

__all__ = [
    "CheckpointError",
    "ConfigError",
    "DataError",
    "EnvironmentProblem",
    "RunFailed",
    "UserError",
]


class CheckpointError(UserError):
    """A checkpoint that cannot be read or written."""


class DataError(UserError):
    """A dataset that cannot be used as it is."""


class EnvironmentProblem(UserError):
    """An environment that is unknown, unsupported, or that failed while it ran."""


class RunFailed(UserError):
    """A run that had to stop; what was learned up to the last good checkpoint is kept."""
