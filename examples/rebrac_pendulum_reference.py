"""`pendulum_reference.py` for rebrac."""

from pendulum_reference import main

main("rebrac")
