"""Leaves: errors, spaces, streams, transforms, registries, files."""
