"""`pendulum_reference.py` for caps."""

from pendulum_reference import main

main("caps")
