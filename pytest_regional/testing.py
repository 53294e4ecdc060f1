"""The fixtures as plain context managers and functions: for unittest classes, scripts and notebooks.

Example::

    from pytest_regional.testing import regional

    with regional(backend="reference") as r:
        r.assert_parity(program, r.randn(8, 16))
"""

from __future__ import annotations

import contextlib
import unittest
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import DEFAULT_SEED
from pytest_regional._torch.distributed import fake_process_group
from pytest_regional._torch.inductor import kernels_not_built
from pytest_regional._torch.pass_forms import pass_form
from pytest_regional.harness.counters import Bound, Counters, at_least, at_most
from pytest_regional.harness.devices.device import EMULATED, kind_of_device
from pytest_regional.harness.devices.emulated import check_refuted
from pytest_regional.harness.devices.on_device import device_limit
from pytest_regional.harness.options import CompileOptions, HarnessOptions
from pytest_regional.harness.pre_grad_passes import counting_pass as pre_grad_pass
from pytest_regional.harness.pre_grad_passes import replacing
from pytest_regional.harness.regional import Regional, harness, running
from pytest_regional.harness.vacuity import check_backend_leaks, check_fallbacks, check_not_vacuous

if TYPE_CHECKING:
    from pytest_regional.backends.spec import BackendSpec
    from pytest_regional.harness.blame.culprit import Culprit
    from pytest_regional.harness.blame.divergence import Divergence
    from pytest_regional.harness.devices.device import DeviceFacts
    from pytest_regional.harness.devices.on_device import KernelReport
    from pytest_regional.harness.graph_passes.result import PassRun
    from pytest_regional.harness.parity.compare import ParityReport
    from pytest_regional.harness.process import ProcessResult
    from pytest_regional.harness.record import CompileRecord
    from pytest_regional.harness.training import TrainingReport

__all__ = [
    "Bound",
    "assert_golden",
    "assert_kernels_compile",
    "assert_parity",
    "assert_training_parity",
    "at_least",
    "at_most",
    "blame",
    "compile",
    "counters",
    "current",
    "expect",
    "fake_process_group",
    "first_divergence",
    "in_new_process",
    "kernels_not_built",
    "no_compile",
    "pass_form",
    "pre_grad_pass",
    "regional",
    "replacing",
    "require_device",
    "restart",
    "run",
    "run_pass",
]


def __getattr__(name: str) -> Any:
    if name != "fake_pg":  # the name of the fixture alone
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(
        "pytest_regional.testing.fake_pg goes with 1.0: use fake_process_group", DeprecationWarning, stacklevel=2
    )
    return fake_process_group


@contextlib.contextmanager
def regional(
    backend: str | BackendSpec = "reference",
    device: str = "auto",
    *,
    dynamic: bool | None = None,
    fullgraph: bool = True,
    inductor_configs: dict[str, Any] | None = None,
    pre_grad_pass_timing: str | None = None,
    requires: Sequence[str] = (),
    device_requires: Sequence[str] = (),
    expects_regions: bool = True,
    isolate: bool = True,
    seed: int = DEFAULT_SEED,
    cache_dir: str | Path | None = None,
    shared_cache: bool = False,
    blame_depth: str = "region",
    verify: float | None = None,
) -> Iterator[Regional]:
    """Give what the ``regional_compile`` marker and the ``regional`` fixture give; the keywords are the marker's.

    Five are not: ``seed`` and ``cache_dir``, which the plugin chooses for a test, ``shared_cache``, which lets compiles
    inside use a cache on a server that the environment names, ``blame_depth``, the value of ``--regional-blame``, and
    ``verify``, that of ``--regional-verify``.

    Yields:
        the harness. When the block ends without an exception, it is checked that something was compiled.

    Raises:
        VacuousTestError: nothing was compiled or loaded, and ``expects_regions`` is true.
        FallbackError: something that was to be compiled ran eager.
        BackendLeakError: the backend left a setting changed when it returned from a compile.
        KernelRefutedError: with ``verify``: a property of a kernel does not hold for some sizes.
        RegionalValueError: ``verify`` on a device that is not emulated, of which no kernel is verified.
        unittest.SkipTest: the backend or the device lacks something in ``requires`` or ``device_requires``.
    """
    options = CompileOptions(dynamic, fullgraph, inductor_configs or {}, None, pre_grad_pass_timing)
    folder = Path(cache_dir) if cache_dir is not None else None
    if verify is not None and kind_of_device(device) != EMULATED:
        raise RegionalValueError(
            f"verify= verifies Triton kernels of an emulated GPU: device='cuda-emulated', not {device!r}"
        )
    with harness(
        backend,
        device,
        folder=folder,
        seed=seed,
        options=options,
        isolate=isolate,
        shared_cache=shared_cache,
        settings=HarnessOptions(blame=blame_depth, verify=verify),
    ) as made:
        for name in requires:
            support = made.supports(name)
            if not support:
                raise unittest.SkipTest(f"backend {made.backend!r} disclaims {name}: {support.reason}")
            limit = device_limit(made.device_under_test, name)
            if not limit:
                raise unittest.SkipTest(f"device {made.device_under_test.name!r} has no {name}: {limit.reason}")
        if device_requires:
            made.require_device(*device_requires)
        yield made
        check_fallbacks(made)
        check_refuted(made.verified_kernels())
        check_backend_leaks(made)
        if expects_regions:
            check_not_vacuous(made)


def current() -> Regional:
    """Return the harness of the innermost ``regional`` block, or of the marked test that is running now.

    Raises:
        RuntimeError: neither is active.
    """
    found = running()
    if found is None:
        raise RuntimeError(
            "no regional harness is active: use `with pytest_regional.testing.regional(...)`, or mark the test "
            "regional_compile and run pytest with --regional-backend"
        )
    return found


def compile(fn: Any, **options: Any) -> Any:
    """As :meth:`Regional.compile` of :func:`current`."""
    return current().compile(fn, **options)


def run(fn: Any, *inputs: Any, **options: Any) -> CompileRecord:
    """As :meth:`Regional.run` of :func:`current`."""
    return current().run(fn, *inputs, **options)


def run_pass(passes: Any, fn_or_graph: Any, *inputs: Any, **options: Any) -> PassRun:
    """As :meth:`Regional.run_pass` of :func:`current`."""
    return current().run_pass(passes, fn_or_graph, *inputs, **options)


def assert_parity(fn: Any, *inputs: Any, **options: Any) -> ParityReport:
    """As :meth:`Regional.assert_parity` of :func:`current`."""
    return current().assert_parity(fn, *inputs, **options)


def assert_training_parity(model: Any, batches: Sequence[Any], **options: Any) -> TrainingReport:
    """As :meth:`Regional.assert_training_parity` of :func:`current`."""
    return current().assert_training_parity(model, batches, **options)


def assert_golden(fn: Any, *inputs: Any, **options: Any) -> CompileRecord:
    """As :meth:`Regional.assert_golden` of :func:`current`, in a test that pytest runs."""
    return current().assert_golden(fn, *inputs, **options)


def blame(fn: Any, *inputs: Any, **options: Any) -> Culprit:
    """As :meth:`Regional.blame` of :func:`current`."""
    return current().blame(fn, *inputs, **options)


def first_divergence(fn: Any, *inputs: Any, **options: Any) -> Divergence:
    """As :meth:`Regional.first_divergence` of :func:`current`."""
    return current().first_divergence(fn, *inputs, **options)


def require_device(*requirements: str) -> DeviceFacts:
    """As :meth:`Regional.require_device` of :func:`current`."""
    return current().require_device(*requirements)


def assert_kernels_compile(
    record: CompileRecord, arch: Sequence[str] | str | None = None, **options: Any
) -> KernelReport:
    """As :meth:`Regional.assert_kernels_compile` of :func:`current`."""
    return current().assert_kernels_compile(record, arch, **options)


def expect(**expected: int | Bound) -> contextlib.AbstractContextManager[None]:
    """As :meth:`Regional.expect` of :func:`current`."""
    return current().expect(**expected)


def no_compile(*, traces: bool = False) -> contextlib.AbstractContextManager[None]:
    """As :meth:`Regional.no_compile` of :func:`current`."""
    return current().no_compile(traces=traces)


def restart() -> None:
    """As :meth:`Regional.restart` of :func:`current`."""
    current().restart()


def counters() -> Counters:
    """Return the counters of :func:`current`."""
    return current().counters


def in_new_process(function: Callable[..., Any], *arguments: Any, **options: Any) -> ProcessResult:
    """As :meth:`Regional.in_new_process` of :func:`current`."""
    return current().in_new_process(function, *arguments, **options)
