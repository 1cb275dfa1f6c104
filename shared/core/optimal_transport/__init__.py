"""Distances between samples, differentiable and on any device: one-dimensional and sliced."""
