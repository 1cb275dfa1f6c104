"""The operator's console: pages to look at, and a few acts, on this machine's loopback or a Unix socket alone."""
