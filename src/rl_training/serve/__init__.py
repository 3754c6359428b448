"""A policy file as a service beside a machine: no torch, names in, names out, every decision written down."""
