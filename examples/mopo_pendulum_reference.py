"""`pendulum_reference.py` for mopo."""

from pendulum_reference import main

main("mopo")
