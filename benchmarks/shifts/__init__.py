"""A battery of made and real shifts: where the default adapts, corrects priors or keeps the model, and to what end."""
