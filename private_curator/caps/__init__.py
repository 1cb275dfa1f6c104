"""Caps on what a client may spend in a day and in a year: brakes of the operator beside the promise."""
