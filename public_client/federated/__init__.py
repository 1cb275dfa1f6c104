"""A site of a federation of another framework: its update comes from its curator, and from nowhere else."""
