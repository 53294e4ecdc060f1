"""Measurements, which are neither part of the package nor tests of it.

``python -m bench`` writes the table of docs/benchmarks.md (``rows``: a module for each group of rows); the other
modules here print one measurement each. Faulty backends, and what notices them, are in ``tests/faults``.
"""
