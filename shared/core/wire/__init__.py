"""The payloads of a step as they travel, checked as they are read."""
