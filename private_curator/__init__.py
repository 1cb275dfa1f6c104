"""The hospital's side: holds the records, enforces the budget, releases only what was charged."""
