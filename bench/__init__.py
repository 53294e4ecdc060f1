"""What is measured, and what is planted: neither is part of the package, nor a test of it.

``python -m bench`` writes the table of docs/benchmarks.md (``rows``: a module for each group of rows); the other
modules here print one measurement each. ``mutants``: faulty backends, and who notices them.
"""
