"""pytest-regional: a pytest plugin and correctness harness for PyTorch's regional compilation.

Everything below is loaded on first use: importing the package costs neither torch nor hypothesis.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_regional._base.errors import RegionalError, RegionalLeakWarning, RegionalWarning
    from pytest_regional._base.region import AnnotationError, region
    from pytest_regional.backends.adapters import GraphCapabilities
    from pytest_regional.backends.capabilities import (
        Capabilities,
        Support,
        declared,
        supported,
        supported_for,
        torch_matches,
        unsupported,
    )
    from pytest_regional.backends.spec import BackendSpec
    from pytest_regional.harness.codegen import CodeAssertionError
    from pytest_regional.harness.compile_times import CompileTimeError
    from pytest_regional.harness.counters import (
        CounterExpectationError,
        Counters,
        UnknownCounterError,
        at_least,
        at_most,
    )
    from pytest_regional.harness.goldens.checking import GoldenError
    from pytest_regional.harness.observe.observer import CompileForbiddenError
    from pytest_regional.harness.parity.compare import BadProgramError, NotRefusedError, ParityError, ParityReport
    from pytest_regional.harness.process import NewProcessError
    from pytest_regional.harness.record import CompileRecord
    from pytest_regional.harness.regional import Regional, report_region
    from pytest_regional.harness.training import TrainingParityError
    from pytest_regional.harness.vacuity import BackendLeakError, FallbackError, VacuousTestError

_HOMES = {
    "AnnotationError": "_base.region",
    "BackendLeakError": "harness.vacuity",
    "BackendSpec": "backends.spec",
    "BadProgramError": "harness.parity.compare",
    "Capabilities": "backends.capabilities",
    "CodeAssertionError": "harness.codegen",
    "CompileForbiddenError": "harness.observe.observer",
    "CompileRecord": "harness.record",
    "CompileTimeError": "harness.compile_times",
    "CounterExpectationError": "harness.counters",
    "Counters": "harness.counters",
    "FallbackError": "harness.vacuity",
    "GoldenError": "harness.goldens.checking",
    "GraphCapabilities": "backends.adapters",
    "NewProcessError": "harness.process",
    "NotRefusedError": "harness.parity.compare",
    "ParityError": "harness.parity.compare",
    "ParityReport": "harness.parity.compare",
    "Regional": "harness.regional",
    "RegionalError": "_base.errors",
    "RegionalLeakWarning": "_base.errors",
    "RegionalWarning": "_base.errors",
    "Support": "backends.capabilities",
    "TrainingParityError": "harness.training",
    "UnknownCounterError": "harness.counters",
    "VacuousTestError": "harness.vacuity",
    "at_least": "harness.counters",
    "at_most": "harness.counters",
    "declared": "backends.capabilities",
    "region": "_base.region",
    "report_region": "harness.regional",
    "supported": "backends.capabilities",
    "supported_for": "backends.capabilities",
    "torch_matches": "backends.capabilities",
    "unsupported": "backends.capabilities",
}

__all__ = [
    "AnnotationError",
    "BackendLeakError",
    "BackendSpec",
    "BadProgramError",
    "Capabilities",
    "CodeAssertionError",
    "CompileForbiddenError",
    "CompileRecord",
    "CompileTimeError",
    "CounterExpectationError",
    "Counters",
    "FallbackError",
    "GoldenError",
    "GraphCapabilities",
    "NewProcessError",
    "NotRefusedError",
    "ParityError",
    "ParityReport",
    "Regional",
    "RegionalError",
    "RegionalLeakWarning",
    "RegionalWarning",
    "Support",
    "TrainingParityError",
    "UnknownCounterError",
    "VacuousTestError",
    "at_least",
    "at_most",
    "declared",
    "region",
    "report_region",
    "supported",
    "supported_for",
    "torch_matches",
    "unsupported",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'pytest_regional' has no attribute {name!r}")
    return getattr(importlib.import_module(f"pytest_regional.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
