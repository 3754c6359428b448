"""Studies of many runs: sweeps on one machine or on Ray, and the search for good settings."""
