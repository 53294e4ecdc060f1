"""Observation of compiles of any backend, through PyTorch's own functions.

* ``observer``: counts and records; ``listeners``: other objects that see graphs and regions while they compile.
* ``annotated``: regions in graphs, and which backend a compile belongs to; ``trace``: what was compiled, in order;
  ``graph_drawing``: for reports.
"""
