"""A local page over a working directory: from a log to a policy beside its machine, without commands."""
