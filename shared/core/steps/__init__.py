"""A run and its steps, whatever the mechanism: admission, price, sample, computation. Curator and mock share it."""
