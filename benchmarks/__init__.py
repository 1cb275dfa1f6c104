"""Commands that make the figures of README and docs. A package: another distribution ships one of this name."""
