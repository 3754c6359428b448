"""`pendulum_reference.py` for edac."""

from pendulum_reference import main

main("edac")
