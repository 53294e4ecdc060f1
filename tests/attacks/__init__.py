"""Attacks on the package: hostile files, tests, backends, users and machines, each as a row of a table."""
