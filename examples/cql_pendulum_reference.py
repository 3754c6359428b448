"""`pendulum_reference.py` for cql."""

from pendulum_reference import main

main("cql")
