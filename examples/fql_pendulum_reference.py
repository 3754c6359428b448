"""`pendulum_reference.py` for fql."""

from pendulum_reference import main

main("fql")
