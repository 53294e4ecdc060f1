"""A report of a defect for PyTorch's issue tracker, made from a finding, a script or a failed test.

Read in this order: ``scripts`` writes short programs that show a finding, ``running`` runs them under a change (another
backend, other seeds, another release of PyTorch) and makes one of a failed test, ``gathering`` collects the facts of a
report and writes it, ``known_issues`` finds what was reported before, ``graph_source`` writes a graph as Python.
``_script_run`` and ``_failing_call`` run in processes of their scripts. May import: ``testing``, ``fuzz``,
``harness``, ``backends``, ``_torch``, ``_base``.
"""
