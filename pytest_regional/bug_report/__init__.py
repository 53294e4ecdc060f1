"""A report of a defect for PyTorch's issue tracker, made from a finding, a script or a failed test.

Read in this order: ``scripts`` writes short programs that show a finding, ``running`` runs them under a change (another
backend, other seeds, another release of PyTorch) and makes one of a failed test, ``gathering`` collects the facts of a
report and writes it, ``known_issues`` finds what was reported before. ``_script_run`` runs in processes of scripts,
``_failing_call`` in that of a failed test, whose graph it writes as Python. May import: ``testing``, ``fuzz``,
``harness``, ``backends``, ``_torch``, ``_base``.
"""
