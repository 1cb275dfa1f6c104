"""What the operator decides and checks: the preflight, approved models, drift."""
