"""`pendulum_reference.py` for redq."""

from pendulum_reference import main

main("redq")
