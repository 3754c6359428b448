"""`pendulum_reference.py` for tqc."""

from pendulum_reference import main

main("tqc")
