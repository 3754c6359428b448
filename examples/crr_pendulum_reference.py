"""`pendulum_reference.py` for crr."""

from pendulum_reference import main

main("crr")
