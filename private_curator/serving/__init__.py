"""The server: authentication, the RPCs, pacing, turns, incidents, uploads, certificates."""
