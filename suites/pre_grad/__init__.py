"""Custom pre-grad passes: when they run, what enters the key of the cache, what is refused."""
