"""`pendulum_reference.py` for lion."""

from pendulum_reference import main

main("lion")
