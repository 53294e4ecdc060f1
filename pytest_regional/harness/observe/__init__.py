"""Observation of compiles of any backend, through PyTorch's own functions.

* ``observer``: counts and records; ``listeners``: other objects that see graphs and regions while they compile.
* ``attribution``: which backend a compile belongs to; ``annotated``: regions in graphs; ``graph_drawing``: for reports.
"""
