"""Run graph passes on one program and look at the graphs before and after.

Modules, in the order in which a call of ``regional.run_pass`` meets them:

* ``running``: the entry; ``stages``: where a pass can run; ``forms``: what a pass can be and how it is called.
* ``given_graph``: stage ``graph``; ``compiled``: every other stage.
* ``recorder``: runs the passes on each graph that comes by; ``snapshot``: copies of graphs.
* ``result``: what the caller gets, with ``ops`` and ``patterns`` (operators and how assertions name them), ``order``,
  ``structure``, ``uuids`` and ``text`` (how failures show graphs) below it.
* ``errors``: everything that is raised.
"""
