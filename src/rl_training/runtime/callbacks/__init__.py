"""What happens along a run: each concern once, none of them known to the loop."""
