"""Search for what a failure comes from: a check is made again and again, each time with one thing changed.

To read in this order: ``reproducing`` makes a check with the harness under a change; ``culprit`` says what a change is,
what becomes of the failure, which few of many steps are to blame, and what the answer is; ``facts`` says what is known
before it; ``layers`` is the search, layer after layer. ``divergence`` finds the first value that is wrong, without
changing anything.
"""
