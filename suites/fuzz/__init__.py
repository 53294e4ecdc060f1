"""Programs that nobody thought of, judged by the oracles of regional compilation; how many, ``--regional-fuzz`` says."""
