"""Search for what a failure comes from: a check is made again and again, each time with one thing changed.

To read in this order: ``reproducing`` makes a check with the harness under a change; ``experiments`` says what a change
is, what becomes of the failure, and which few of many steps are to blame; ``facts`` says what is known before it;
``layers`` is the search, layer after layer;
``culprit`` is the answer. ``divergence`` finds the first value that is wrong, without changing anything.
"""
