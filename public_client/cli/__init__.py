"""Subcommands of ``dpswd-client``; each module is imported when its command runs."""
