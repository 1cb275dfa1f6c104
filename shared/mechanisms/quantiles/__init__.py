"""Sliced quantile coefficients."""
