"""Triton kernels run on numpy arrays, one program after the other, in the process that compiles them.

Built on the classes of Triton's own interpreter, whose ``create_*`` methods compute; what they compute wrongly or
slowly is replaced (float conversions, sub-32-bit floats, reductions and scans of any function, atomics, libdevice), and
every access to memory is checked. Nothing of Triton is changed except while a kernel runs:

* ``values``: numpy representations of Triton's types, conversions between them.
* ``accesses``: the memory of one launch, address by address; where out-of-bounds accesses are seen.
* ``builder``: the ``create_*`` methods, put together of ``arithmetic`` and ``accesses``; another builder, whose
  operations do something else, may be used in its place.
* ``functions``: jitted functions as Python functions, and what of Triton is replaced while a kernel runs.
"""
