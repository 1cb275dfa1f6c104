"""Structure-aware fuzzing of every RPC of the curator."""
