"""The sanitized gradient of cross-entropy with the records' own labels."""
