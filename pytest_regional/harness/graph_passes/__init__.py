"""Run graph passes on one program and look at the graphs before and after.

Modules, in the order in which a call of ``regional.run_pass`` meets them:

* ``compiled``: the entry, stage ``graph``, and the stages inside a compile.
* ``recorder``: the stages, how a pass is called (with :mod:`pytest_regional._torch.pass_forms`), and all that is
  raised; runs the passes on each graph that reaches them, and copies it.
* ``result``: what the caller gets.
"""
