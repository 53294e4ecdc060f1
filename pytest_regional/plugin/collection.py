"""What happens to marked tests at collection: checks, parametrization, skips, expected failures.

The skips that depend on the device are added when a test begins: collecting tests touches no device.
"""

from __future__ import annotations

import itertools
import os
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from _pytest.pathlib import bestrelpath
from _pytest.unittest import TestCaseFunction

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.stash import CHOICE, PROBLEM, SHARD_ARGUMENT, TARGET, shards
from pytest_regional._base.text import unknown_name
from pytest_regional.backends import registry
from pytest_regional.backends.capabilities import torch_matches
from pytest_regional.harness.devices.device import kind_of_device
from pytest_regional.harness.options import CompileOptions
from pytest_regional.plugin import marks, options
from pytest_regional.plugin.fixtures import COMPILE_MARK, KNOWN_FAILURE_MARK

if TYPE_CHECKING:
    from pytest_regional.plugin.session import RegionalSession

TARGET_ARGUMENTS = ("regional_backend", "regional_device")


def module_of(path: Path, parent: pytest.Collector) -> pytest.Module | None:
    """Return the module of a test file of an installed package, or of another one outside of pytest's root directory.

    pytest leaves the path, or most of it, out of their ids, so tests of several files have the same. These ids begin at
    the directory of the package, for the suites of this package as in a clone: ``suites/models/test_llama.py``.
    """
    root = parent.config.rootpath
    if path.is_relative_to(root) and "site-packages" not in path.parts:
        return None
    top = path.parent
    while (top / "__init__.py").exists():
        top = top.parent
    inside = path.relative_to(top).as_posix().removeprefix("pytest_regional/")
    nodeid = inside if top != path.parent else bestrelpath(root, path).replace(os.sep, "/")
    return pytest.Module.from_parent(parent, path=path, nodeid=nodeid)


def parametrize(metafunc: pytest.Metafunc, session: RegionalSession) -> None:
    """Run the test once per backend and device; a single choice leaves the test's id as it is."""
    try:
        mark = marks.compile_mark(metafunc.definition)
    except RegionalValueError:
        return  # reported with the test's name when collection ends
    if mark is None:
        return
    choices = (mark.backend or session.settings.backends, mark.device or session.settings.devices)
    for argument, names in zip(TARGET_ARGUMENTS, choices, strict=True):
        if argument not in metafunc.fixturenames:
            metafunc.fixturenames.append(argument)
        if len(names) > 1:
            metafunc.parametrize(argument, names, indirect=True, ids=[session.short_name(name) for name in names])
    if SHARD_ARGUMENT in metafunc.fixturenames:
        count = shards(metafunc.config)
        metafunc.parametrize(SHARD_ARGUMENT, range(count), indirect=True, ids=[f"shard{n}" for n in range(count)])


def prepare(items: list[pytest.Item], session: RegionalSession | None) -> None:
    """Check the marks of all tests, then skip or prepare the marked ones.

    Raises:
        pytest.UsageError: with every wrong mark and the test it stands on.
    """
    if session is not None:
        items[:] = [one for item in items for one in _once_per_target(item, session)]
    problems: dict[pytest.Item, str] = {}
    for item in items:
        try:
            _prepare_one(item, session)
        except (LookupError, ValueError, ImportError, pytest.UsageError) as error:
            problems[item] = f"{item.nodeid}: {error}"
        except Exception:  # noqa: BLE001 - it would end the whole run; becomes a usage error with its traceback
            said = "pytest-regional could not read the test's marks"
            problems[item] = f"{item.nodeid}: {said}\n{traceback.format_exc()}"
    of_all = session.known_failures.unmatched(items) if session is not None else []
    if not hasattr(items[0].config, "workerinput"):
        if problems or of_all:
            raise pytest.UsageError("\n".join(dict.fromkeys([*problems.values(), *of_all])))
        return
    # xdist turns a usage error of a worker into an internal error that hides it. So there each test that is wrong says
    # it, the others run; what is wrong with no test in particular every test says.
    for item in items:
        text = "\n".join(filter(None, [problems.get(item, ""), *of_all]))
        if text:
            item.stash[PROBLEM] = text


class _CopiedTestCaseFunction(TestCaseFunction):
    """A unittest method under an id that says which backend it runs on (checked on pytest 8 and 9)."""

    @property
    def _method(self) -> str:
        """The name under which unittest looks the method up."""
        return self.name.partition("[")[0]

    def _getinstance(self) -> Any:
        test_case: Any = self.parent
        return test_case.obj(self._method)

    def _getobj(self) -> Any:
        return getattr(self.instance, self._method)


def _once_per_target(item: pytest.Item, session: RegionalSession) -> list[pytest.Item]:
    """Return a marked unittest method once for each backend and device; anything else as it is.

    pytest does not parametrize unittest methods.
    """
    if not isinstance(item, TestCaseFunction) or item.get_closest_marker(COMPILE_MARK) is None:
        return [item]
    try:
        mark = marks.compile_mark(item) or marks.CompileMark()
    except RegionalValueError:
        return [item]
    axes = (mark.backend or session.settings.backends, mark.device or session.settings.devices)
    targets = list(itertools.product(*axes))
    varied = [index for index, axis in enumerate(axes) if len(axis) > 1]
    items: list[pytest.Item] = [item]
    if varied:
        names = ["-".join(session.short_name(target[index]) for index in varied) for target in targets]
        items = [_CopiedTestCaseFunction.from_parent(item.parent, name=f"{item.name}[{name}]") for name in names]
    for one, target in zip(items, targets, strict=True):
        one.stash[CHOICE] = target
    return items


def _prepare_one(item: pytest.Item, session: RegionalSession | None) -> None:
    mark = marks.compile_mark(item)
    if mark is None:
        return
    failures = [marks.known_failure(one) for one in item.iter_markers(KNOWN_FAILURE_MARK)]
    if session is None:
        item.add_marker(pytest.mark.skip(reason=options.OFF_REASON))
        return
    target = session.target_of(item, mark)
    if mark.inductor_configs:
        CompileOptions(inductor_configs=mark.inductor_configs).require_settings()
    item.stash[TARGET] = target
    item.user_properties.append(("regional_backend", target.spec.name))
    for name in target.mark.requires:
        support = target.spec.supports(name)
        if not support:
            reason = f"backend {target.spec.name!r} disclaims {name}: {support.reason}"
            apply_unsupported(item, reason, "it works, so claim the capability", audit=session.settings.audit)
    for failure in failures:
        if failure.backend != target.spec.name:
            # All that are installed or under test.
            known = {*registry.names(), *map(session.short_name, session.settings.backends)}
            if failure.backend not in known and ":" not in failure.backend:
                raise RegionalValueError(f"{KNOWN_FAILURE_MARK}: {unknown_name('backend', failure.backend, known)}")
        elif torch_matches(failure.torch) and failure.device in ("", kind_of_device(target.device)):
            item.add_marker(pytest.mark.xfail(reason=failure.reason, strict=failure.strict))
    for line in session.known_failures.matching(item.nodeid, target.spec.name, target.mark.requires):
        item.add_marker(pytest.mark.xfail(reason=f"{line.reason} ({line.link})", strict=True))


def apply_unsupported(item: pytest.Item, reason: str, advice: str, *, audit: bool) -> None:
    """Skip ``item``, which needs what is unsupported for ``reason``; under an audit it runs and has to fail."""
    if audit:
        item.add_marker(pytest.mark.xfail(reason=f"audit: {reason}; {advice}", strict=True))
    else:
        item.add_marker(pytest.mark.skip(reason=reason))
