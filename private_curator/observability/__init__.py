"""Watching a curator: logs, metrics and traces of data-independent values only (docs/operator/monitoring.md)."""
