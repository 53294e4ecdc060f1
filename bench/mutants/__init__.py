"""Backends that are wrong on purpose, and backends that are right though odd: what the suites and the fuzzer detect.

``planting`` (how the reference backend is changed while it compiles), ``rewriting`` (what many changes need),
``faults`` (one fault each), ``odd`` (none), ``backends`` (each as ``--regional-backend=bench.mutants.backends:NAME``),
``detection`` (``make detection``: who notices what).
"""
