"""The private records as files: formats, checks, what was understood, conversion to a file that can be mapped."""
