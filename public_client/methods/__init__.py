"""The ways to train for a target, one file each."""
