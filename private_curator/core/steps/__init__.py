"""What a step draws in secret, and what it releases."""
