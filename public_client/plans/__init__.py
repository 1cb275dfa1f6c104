"""What a run will be and what it will cost, before anything is spent."""
