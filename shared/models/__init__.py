"""Models as files: graphs, weights and what is known of their source."""
