"""The demo: its plant, its story and its page."""
