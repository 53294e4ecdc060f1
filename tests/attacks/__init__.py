"""Attacks on the package: hostile files, tests and machines, each with what has to come of it."""
