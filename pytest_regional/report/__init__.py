"""What a run prints and writes at its end, and how reports are read, compared and merged.

* ``facts``: what one test did; ``details``: graphs and programs of failed tests; ``document``: the JSON report of both.
* ``terminal`` prints the table; ``page``, ``step_summary``, ``ci`` and ``outputs`` write files; ``junit`` adds
  properties to pytest's; ``this_run`` collects what they need.

May import: ``fuzz`` for the place of findings, ``harness``, ``backends``, ``_torch``, ``_base``.
"""
