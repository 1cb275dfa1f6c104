"""Benchmarks: every figure of the docs has its command here.

A package of its own: some libraries install one of this name, which would be found in the place of a mere folder.
"""
