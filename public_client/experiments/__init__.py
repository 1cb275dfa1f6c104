"""Whole experiments from a file: connect, run, plot, report."""
