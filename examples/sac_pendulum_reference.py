"""`pendulum_reference.py` for sac."""

from pendulum_reference import main

main("sac")
