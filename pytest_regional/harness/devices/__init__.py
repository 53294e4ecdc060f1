"""Devices under test: which there are, what they can do, and the emulated GPU.

* ``device``: the device of a test, its state, and what a test may require of it.
* ``emulated``: a test on an emulated GPU; ``on_device``: what ``regional`` offers about devices and their kernels.
"""
