"""Runs: their directories, training, resuming, saving, tracking, exporting."""
