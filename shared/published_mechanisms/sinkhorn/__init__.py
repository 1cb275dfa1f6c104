"""The sanitized gradient of DP-Sinkhorn's loss in generated points."""
