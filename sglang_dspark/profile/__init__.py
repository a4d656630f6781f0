"""`profile`: measure what rounds cost on this machine, and where such measurements are kept."""
