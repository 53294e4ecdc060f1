"""Attacks on the package: hostile files, tests and machines, a few lines for each."""
