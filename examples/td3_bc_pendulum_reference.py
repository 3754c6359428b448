"""`pendulum_reference.py` for td3_bc."""

from pendulum_reference import main

main("td3_bc")
