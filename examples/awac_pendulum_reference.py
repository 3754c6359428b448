"""`pendulum_reference.py` for awac."""

from pendulum_reference import main

main("awac")
