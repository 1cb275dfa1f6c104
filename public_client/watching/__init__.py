"""Watching a delivered model: evaluated again and again on records that change, at a price that is bounded."""
