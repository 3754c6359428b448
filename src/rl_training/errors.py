"""Errors a user can act on: the message is the whole story, no traceback needed."""


class UserError(ValueError):
    """An expected problem. The command line prints the message and exits with code 2."""


class ConfigError(UserError):
    """A configuration that cannot be used; one line per mistake."""


class CheckpointError(UserError):
    """A checkpoint that cannot be read or written."""


class DataError(UserError):
    """A dataset that cannot be used as it is."""


class EnvironmentProblem(UserError):
    """An environment that is unknown, unsupported, or that failed while it ran."""


class RunFailed(UserError):
    """A run that had to stop; what was learned up to the last good checkpoint is kept."""
