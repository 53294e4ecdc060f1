"""A report of a defect for PyTorch's issue tracker, made from a finding, a script or a failed test.

Read in this order: ``scripts`` writes short programs that show a finding, ``running`` runs them under a change (another
backend, other seeds, another release of PyTorch), ``gathering`` collects what a report says, ``known_issues`` finds
what was reported before. ``running`` also makes a script of a
test that fails.
"""
