"""Observation of compiles of any backend, through PyTorch's own functions.

* ``observer``: counts and records; ``listeners``: other objects that see graphs and regions while they compile, one of
  which draws them for reports; ``trace``: what was compiled, in order.
* ``annotated``: regions in graphs, and which backend a compile belongs to.
"""
