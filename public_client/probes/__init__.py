"""Probes in a network: what they tell of each record, and how they move its channels."""
