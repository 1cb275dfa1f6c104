"""What a release costs, and whether a budget still allows it. Pure: no file, no socket, no database, no secret."""
