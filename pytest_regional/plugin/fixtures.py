"""The names of the marks, and the fixtures: thin, each a few lines over ``harness/``. Imported in every pytest run."""

from __future__ import annotations

import contextlib
import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_regional._base.stash import HARNESS, SESSION
from pytest_regional._base.text import nearest

if TYPE_CHECKING:
    import torch

    from pytest_regional.fuzz.fuzz_test import FuzzTest
    from pytest_regional.harness.regional import Regional


COMPILE_MARK = "regional_compile"
KNOWN_FAILURE_MARK = "regional_known_failure"

MARKER_LINES = (
    f"{COMPILE_MARK}(backend=None, device=None, dynamic=None, fullgraph=True, inductor_configs=None, "
    "pre_grad_pass_timing=None, requires=(), device_requires=(), expects_regions=True, isolate=True): compile with the "
    "backend under test; skipped unless --regional-backend is given, isolated, counted, and failed when no region was "
    "compiled.",
    f'{KNOWN_FAILURE_MARK}(backend, reason, torch=">=2.13", device="cuda", strict=True): the test is known to fail '
    "with that backend on those torch versions and that kind of device; when it passes, the mark is to be removed and "
    "the test fails until it is.",
)


@pytest.fixture
def regional(request: pytest.FixtureRequest) -> Regional:
    """Compile, compare and count with the backend under test; needs the regional_compile marker."""
    if HARNESS not in request.node.stash:
        # pytest refuses no mark: one may be misspelt.
        near = nearest(COMPILE_MARK, [mark.name for mark in request.node.iter_markers()], likeness=0.75)
        hint = f". The test has the mark {near!r}: did you mean {COMPILE_MARK!r}?" if near else ""
        pytest.fail(
            "the regional fixture needs @pytest.mark.regional_compile on the test (or its class or module): the marker "
            f"is what isolates the test, counts its compiles and skips it when --regional-backend is not given{hint}",
            pytrace=False,
        )
    harness: Regional = request.node.stash[HARNESS]
    return harness


@pytest.fixture
def pre_grad_pass() -> Callable[..., Any]:
    """Make pre-grad passes that count their runs in .calls; takes uuid= and transform=."""
    from pytest_regional.harness.pre_grad_passes import counting_pass

    return counting_pass


@pytest.fixture
def regional_backend(request: pytest.FixtureRequest) -> str:
    """Name of the backend under test; a test without the marker fails when it uses this."""
    name: str = request.getfixturevalue("regional").backend
    return name


@pytest.fixture
def regional_device(request: pytest.FixtureRequest) -> torch.device:
    """Return the torch.device under test."""
    device: torch.device = request.getfixturevalue("regional").device
    return device


@pytest.fixture
def regional_cache_dir(request: pytest.FixtureRequest) -> Path:
    """Return the directory of this test's compiler caches: empty at its start, and used by no other test."""
    folder: Path = request.getfixturevalue("regional").folder
    return folder


@pytest.fixture
def fake_pg() -> Iterator[Callable[..., Any]]:
    """Start torch.distributed with the fake process group; takes world_size=8 and rank=0; destroyed at the end."""
    from pytest_regional._torch.distributed import fake_process_group

    with contextlib.ExitStack() as stack:

        def start(world_size: int = 8, rank: int = 0) -> Any:
            context: AbstractContextManager[Any] = fake_process_group(world_size, rank)
            return stack.enter_context(context)

        yield start


@pytest.fixture
def _regional_fuzz_shard(request: pytest.FixtureRequest) -> int:
    """Return which part of a fuzz test this is: one for each xdist worker."""
    return int(getattr(request, "param", 0))


@pytest.fixture
def regional_fuzz(request: pytest.FixtureRequest, regional: Regional, _regional_fuzz_shard: int) -> Iterator[FuzzTest]:
    """Draw programs, check them and keep what is found, as long as --regional-fuzz says; see .run(mode)."""
    if not importlib.util.find_spec("pytest_regional.fuzz"):
        pytest.fail("regional_fuzz needs the package pytest_regional.fuzz, which is not here", pytrace=False)
    from pytest_regional.fuzz.fuzz_test import fuzz_test

    test = fuzz_test(request.node, request.config.stash[SESSION], regional, _regional_fuzz_shard)
    yield test
    if test.interrupted:
        request.session.shouldstop = "a campaign was ended before its time"
