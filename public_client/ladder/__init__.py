"""The ladder: one call that asks a hospital the cheapest thing that may help, and goes on while it pays."""
