"""Class counts, class sums and second moments of features, as one noised sum."""
