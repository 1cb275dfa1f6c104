"""The server: authentication, the RPCs, pacing, turns, renewals."""
