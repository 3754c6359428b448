"""`pendulum_reference.py` for cal_ql."""

from pendulum_reference import main

main("cal_ql")
