"""Numerical parity of a compiled program with eager.

* ``check``: the flow of ``assert_parity``; ``compare``: two executions against each other, and the verdict.
* ``execution``: one run of a program and what it left behind: ``inputs``, ``state``, ``captured``, ``objects``.
* ``fp64_reference``, ``rounding``, ``noise``: how large an error eager itself makes; ``tolerance``: what is allowed.
* ``report``: what a test gets, and the error; ``random_code``: whether a program draws random numbers.
"""
