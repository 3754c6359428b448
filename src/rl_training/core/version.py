"""The version of the package, written once."""

VERSION = "0.1.0"
