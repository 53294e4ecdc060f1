"""Staleness: after a change of the program or of anything that it depends on, no cache gives back the old result."""
