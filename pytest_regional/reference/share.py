"""Compile identical partitions once: within a compile, and across all modules that this process compiled.

The region's id is no part of what makes partitions identical, so 32 equal blocks cost one compile each way, and a
second model made of the same blocks costs none.
"""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from functools import cached_property
from typing import Any

from pytest_regional._torch.region_compile import (
    at_dynamo_reset,
    compile_state,
    is_graph_module,
    standalone_compile,
)
from pytest_regional.reference.calling import Compiled
from pytest_regional.reference.compile_regions import RegionCompiler, RegionRequest
from pytest_regional.reference.fingerprint import fingerprint
from pytest_regional.reference.regions import freeze

Memory = dict[Hashable, Compiled]

# Weak, so that a compiled region goes with the last graph that calls it.
_of_this_process: weakref.WeakValueDictionary[Hashable, Any] = weakref.WeakValueDictionary()


class SharedCompiler:
    """A region compiler for one graph that hands the same callable to identical partitions.

    Partitions with symbolic shapes are shared through ``memory``, which must belong to one compile (its forward and
    its backward graph): symbols of different shape environments may bear the same name. Others are shared, if
    ``across_modules`` is set, with everything that this process compiled through an equal ``compiler`` under equal
    settings since Dynamo was last reset.
    """

    def __init__(self, compiler: RegionCompiler, memory: Memory | None = None, *, across_modules: bool = False) -> None:
        self._compiler = compiler
        self._memory = {} if memory is None else memory
        self._across_modules = across_modules
        self.shared: list[str] = []

    def __call__(self, request: RegionRequest) -> Compiled:
        """Compile ``request``, or return what an identical one was compiled to."""
        identity = fingerprint(request)
        key = identity.token, self._state
        compiled = self._memory.get(key)
        lasting = self._across_modules and not identity.symbolic
        if compiled is None and lasting:
            compiled = _of_this_process.get(self._lasting(key))
        if compiled is None:
            compiled = self._compiler(request)
            if lasting and not is_graph_module(compiled):
                at_dynamo_reset(forget)
                _of_this_process[self._lasting(key)] = compiled
        else:
            self.shared.append(request.name)
        self._memory[key] = compiled
        return compiled

    @cached_property
    def _state(self) -> Hashable:
        """Settings in force while this graph is compiled."""
        return _HashedOnce(freeze(compile_state()))

    def _lasting(self, key: Hashable) -> Hashable:
        """Tell a patched ``standalone_compile`` from the real one: whoever counts its calls starts from nothing."""
        return key, self._compiler, standalone_compile()


def forget() -> None:
    """Forget what this process compiled; Dynamo's reset does so too."""
    _of_this_process.clear()


class _HashedOnce:
    """A large hashable value whose hash is computed once."""

    def __init__(self, value: Hashable) -> None:
        self._value = value
        self._hash = hash(value)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _HashedOnce) and self._value == other._value
