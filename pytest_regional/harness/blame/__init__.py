"""Search for what a failure comes from: a check is made again and again, each time with one thing changed.

To read in this order: ``reproducing`` makes a check with the harness under a change; ``experiments`` says what a change
is, and what becomes of the failure; ``layers`` is the search, layer after layer, and ``search`` finds few of many
steps; ``culprit`` is the answer. ``divergence`` finds the first value that is wrong, without changing anything.
"""
