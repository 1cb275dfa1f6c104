"""The core of the promise: what a hospital's reviewer reads to believe it."""
