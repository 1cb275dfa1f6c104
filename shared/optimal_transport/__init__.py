"""Distances between samples, differentiable and on any device: one-dimensional, sliced, and entropic (Sinkhorn)."""
