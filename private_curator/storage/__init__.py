"""What the curator keeps on disk: its home directory, certificates, uploads, incidents."""
