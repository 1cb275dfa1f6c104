"""A step from its admission to its answer."""
