"""Attacks on the package: hostile files, users and tests, each as a row of a table."""
