"""Configuration, registry, checkpoints, run directories and the experiment manager."""
