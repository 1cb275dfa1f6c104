"""Noised counts of a model's predictions."""
