"""Programs that nobody thought of, checked against the oracles of regional compilation; how many, ``--regional-fuzz`` says."""
