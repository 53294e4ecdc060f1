"""Devices under test: which there are, what they can do, and the emulated GPU.

* ``device``: the device of a test, by name, and what a test may require of it; needs no torch.
* ``emulated``: a test on an emulated GPU; ``on_device``: what ``regional`` offers about devices and their kernels.
"""
