"""Operators that fuzzed programs are made of: ``operator`` describes one, ``table`` holds them all.

``schemas`` reads PyTorch's schemas; ``aten`` derives operators from them. Each other module holds a few families and
ends with its ``OPERATORS``: ``pointwise``, ``reductions``, ``matmul``, ``views``, ``factories``, ``indexing`` (reads
and writes), ``calls`` (of blocks), ``transforms`` (loops, derivatives, losses), and ``aliasing``.
"""
