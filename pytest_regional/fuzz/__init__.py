"""Fuzzing: a program model, a table of operators, random programs, oracles that check them, and findings.

* ``model``: programs as data; ``operators``: what they are made of; ``draw``: random ones; ``shrink``: smaller ones.
* ``oracles``: what every program has to keep; ``findings``: what broke one, on disk; ``caches``: sequences of cache
  operations; ``graph_capture``: programs as FX graphs.
* ``fuzz_test``: the fixture; ``campaign`` draws and checks many programs; ``shards``, ``shard_worker``,
  ``processes``, ``ray_cluster``: the same on several processes and machines.
* ``settings``: the modes and settings that programs are compiled in; ``budget``: how many.

May import: ``testing``, ``harness``, ``backends``, ``_torch``, ``_base``.
"""
