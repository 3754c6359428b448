"""Runs: collecting, training, evaluating, and the workflows built of them."""
