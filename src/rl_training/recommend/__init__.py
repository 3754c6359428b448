"""From a log to one recommended policy, or to an honest no."""
