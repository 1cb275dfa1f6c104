"""The operator's command line: ``dpswd-curator``."""
