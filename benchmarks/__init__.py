"""Commands that make the figures of the docs; a package, because opacus installs another one of this name."""
