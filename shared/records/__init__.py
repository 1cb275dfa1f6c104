"""Records in files, as both parties read them: formats, tables, and refusals that know their place."""
