"""The operator's command line: ``dpswd-curator``."""

from private_curator.cli.main import main

__all__ = ["main"]
