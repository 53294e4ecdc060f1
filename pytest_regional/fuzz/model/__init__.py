"""Programs as data.

* ``program``, ``arguments``: what a program is; ``source``: its text; ``building``: from steps, each tried in eager.
* ``value_range``: what is known of values; ``claims``: what a program promises; ``evaluation``: an eager run.
"""
