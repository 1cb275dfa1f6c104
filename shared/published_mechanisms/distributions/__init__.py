"""Sliced distribution functions of every record, class by class: a bounded sum, read in shards."""
