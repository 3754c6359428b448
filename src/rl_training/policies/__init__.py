"""What acts: a policy, its files and their exports."""
