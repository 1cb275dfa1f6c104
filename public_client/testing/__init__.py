"""Curators for rehearsals: one in memory, and a real process on this machine."""
