"""`pendulum_reference.py` for iql."""

from pendulum_reference import main

main("iql")
