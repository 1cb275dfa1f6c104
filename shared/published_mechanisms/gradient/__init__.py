"""The sanitized gradient through the target branch."""
