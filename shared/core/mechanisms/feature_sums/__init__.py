"""The sanitized gradient of a domain critic."""
