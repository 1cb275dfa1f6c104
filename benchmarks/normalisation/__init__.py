"""What statistics of normalisation layers recover of made and natural shifts."""
