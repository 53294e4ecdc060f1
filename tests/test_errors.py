"""All errors and warnings of the package have its two bases."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
from collections.abc import Iterator

import pytest

import pytest_regional
from pytest_regional import RegionalError, RegionalWarning

#: With the reason.
OTHER_BASES = {
    "EndedBySignal": "no Exception: compilers catch any, and the run would go on",
    "RegionalTimeoutError": "no Exception: what a program raises is compared, and must not be taken for it",
}


def modules() -> Iterator[types.ModuleType]:
    for found in pkgutil.walk_packages(pytest_regional.__path__, "pytest_regional."):
        # `__main__` and children of it run when they are imported; templates are not of the package.
        if not found.name.endswith(("__main__", "._child")) and "template" not in found.name:
            yield importlib.import_module(found.name)


def without_base(module: types.ModuleType) -> Iterator[str]:
    for name, value in vars(module).items():
        if not inspect.isclass(value) or not issubclass(value, BaseException) or value.__module__ != module.__name__:
            continue
        base = RegionalWarning if issubclass(value, Warning) else RegionalError
        if not name.startswith("_") and name not in OTHER_BASES and not issubclass(value, base):
            yield f"{module.__name__}.{name}"


def test_every_error_and_warning_has_its_base() -> None:
    pytest.importorskip("redis")
    checked = list(modules())
    assert len(checked) > 200
    assert [name for module in checked for name in without_base(module)] == []


def test_one_without_it_is_named() -> None:
    module = types.ModuleType("planted")
    exec("class OddError(ValueError): pass\nclass OddWarning(UserWarning): pass", vars(module))
    assert list(without_base(module)) == ["planted.OddError", "planted.OddWarning"]
