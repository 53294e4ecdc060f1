"""Numerical parity of a compiled program with eager.

* ``check``: the flow of ``assert_parity``; ``compare``: two executions against each other, and the verdict.
* ``execution``: one run of a program and what it left behind: ``inputs``, ``state``, ``captured``, ``objects``.
* ``precision``: eager in float64, in a coarser precision, or with every result off by a rounding.
* ``tolerance``: how large an error eager itself makes, and what is allowed.
* ``report``: what a test gets, and the error; ``random_code``: whether a program draws random numbers.
"""
