"""Noised projections, row by row."""
