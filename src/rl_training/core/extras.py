"""How to get what the core install leaves out."""


def install_hint(extra: str) -> str:
    """The command that adds an extra; the package is on no index, so it is installed from a checkout."""
    return f'in a checkout of rl_training run: pip install ".[{extra}]"'
