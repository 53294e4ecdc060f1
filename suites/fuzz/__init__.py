"""Random programs, checked against the oracles of regional compilation; ``--regional-fuzz`` says how many."""
