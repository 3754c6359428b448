"""`cartpole_reference.py` for dqn."""

from cartpole_reference import main

main("dqn")
