"""Conformance suites for backends of regional compilation; run them with `pytest --regional-backend=NAMES`."""
