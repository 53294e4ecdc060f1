"""One emulated GPU for the tests of a module, with caches of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from pytest_regional.emulation import Emulation, emulated


@pytest.fixture(scope="module")
def emulation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Emulation]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        with emulated("h200") as found:
            yield found
    torch._dynamo.reset()
