"""Faults planted on purpose, as data, with what must notice each of them.

The modules here hold faulty backends, and backends that are odd but right: ``planting`` (how the reference backend is
changed while it compiles), ``rewriting`` (shared changes), ``of_backends`` (one fault each), ``odd`` (no fault),
``backends`` (each as ``--regional-backend=tests.faults.backends:NAME``), ``detection`` (``make detection``: which
suites and oracles notice which fault).

The packages plant faults elsewhere: in generated code (``emulation``, ``verify``), compiled programs (``parity``,
``training``), compilers (``blame``), backends that crash or hang (``plugin``), the reference's passes and stored files
(``reference``), processes that write to a cache (``caching``), and a test's process (``leaks``).
``campaign_kills`` kills the processes of a fuzzing campaign.
"""
