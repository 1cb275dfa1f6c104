"""Acts, refusals and releases for a hospital's security team, over TLS."""
