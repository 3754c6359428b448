"""`pendulum_reference.py` for mobile."""

from pendulum_reference import main

main("mobile")
