"""Which draft tokens to verify: pure functions over small NumPy arrays. Imports neither torch nor the engine."""
