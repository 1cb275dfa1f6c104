"""What one labelled release says of how a team's scores are to be corrected, by one likelihood."""
