"""Whole experiments from a file: connect, run, report."""
