"""Mistakes that a user can mend: the message is the whole story, no traceback needed."""


class UserError(ValueError):
    """An expected problem. The command line prints the message and exits with code 2."""


class ConfigError(UserError):
    """A configuration that cannot be used; one line per mistake."""
