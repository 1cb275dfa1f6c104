"""Class counts, gradient and curvature of the log-loss in a linear correction of scores, as one noised sum."""
