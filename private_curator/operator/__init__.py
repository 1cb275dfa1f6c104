"""What the operator decides and checks: the home directory, the preflight, approved models, drift."""
