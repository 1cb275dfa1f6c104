"""The team's own data: sources, data sets, networks, devices, accuracy."""
