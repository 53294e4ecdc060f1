"""Attacks on the package: hostile files, hostile tests, hostile machines."""
