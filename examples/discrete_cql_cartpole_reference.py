"""`cartpole_reference.py` for discrete_cql."""

from cartpole_reference import main

main("discrete_cql")
