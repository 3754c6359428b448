"""`pendulum_reference.py` for bc."""

from pendulum_reference import main

main("bc")
