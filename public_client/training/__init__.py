"""Training against curators: sites, the loop, checkpoints, saved models."""
