"""An algorithm, a network and a data format for rl_training; `pyproject.toml` makes them known."""
