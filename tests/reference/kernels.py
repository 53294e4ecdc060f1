"""Code that Inductor generates, run without a C++ compiler."""

import contextlib
from unittest import mock

from torch._inductor.async_compile import AsyncCompile

from pytest_regional.testing import kernels_not_built


@contextlib.contextmanager
def kernels_do_nothing():
    """Generate code that can run, without a C++ compiler: no kernel writes its result. For tests that read the code."""

    def kernel(*_):
        pass

    with kernels_not_built(), mock.patch.object(AsyncCompile, "cpp_pybinding", return_value=kernel):
        yield
