"""A trained policy as one portable file, and the ways to open it again."""
