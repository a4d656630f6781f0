"""The real engine with a tiny pair, tested against the pair's exact distributions."""
