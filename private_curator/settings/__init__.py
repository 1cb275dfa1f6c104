"""The operator's settings: their groups, and the tree that is read from file, environment and command line."""
