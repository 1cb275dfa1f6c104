"""From a torch module to a graph of the sandbox's vocabulary."""
