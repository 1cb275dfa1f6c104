"""What produces each figure of README and docs, a command each: ``python -m benchmarks.NAME --help``.

A regular package, because one of the libraries that tests use installs a package of the same name.
"""
