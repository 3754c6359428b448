"""`pendulum_reference.py` for td3."""

from pendulum_reference import main

main("td3")
