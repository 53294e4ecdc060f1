"""Operators that fuzzed programs are made of: ``operator`` describes one, ``table`` holds them all.

Each other module holds a few families and ends with its ``OPERATORS``.
"""
