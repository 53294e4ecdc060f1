"""Programs as data.

* ``program``, ``arguments``: what a program is, and what is known of its values; ``source``: its text.
* ``building``: from steps, each tried in eager; ``claims``: what a program asks of a backend, and its eager run.
"""
