"""The cache of whole results: what hits, what misses, what a hit is worth, and what cannot be cached."""
