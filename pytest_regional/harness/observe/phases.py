"""How long each phase of what compiles takes, by graph and region."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from pytest_regional._torch.compile_phases import PhaseClock
from pytest_regional.harness.observe.listeners import CompileListener

if TYPE_CHECKING:
    from pytest_regional.harness.observe.observer import Observer


class PhaseListener(CompileListener):
    """Says to a clock which graph or region compiles, while it is among ``Observer.listeners``.

    Attributes:
        clock: which has to run. It counts nothing while the observer does not.
    """

    def __init__(self, observer: Observer, now: Callable[[], float] = time.perf_counter) -> None:
        self.clock = PhaseClock(now, lambda: self in observer.listeners)
        self._observer = observer

    @contextlib.contextmanager
    def compiling_graph(self, kind: str, gm: Any) -> Iterator[Callable[[Any], None]]:
        """Count what the backend's compiler does with a graph as its own, up to the steps that PyTorch logs."""
        with self.clock.inside("other", f"the {kind} graph"):
            yield _ignore

    @contextlib.contextmanager
    def compiling_region(self, gm: Any, inputs: Sequence[Any]) -> Iterator[Callable[[Any], None]]:
        """Count what Inductor does with a region as that region's."""
        with self.clock.inside("inductor", str(self._observer.innermost())):
            yield _ignore


def _ignore(result: Any) -> None:
    """Do nothing with what a compile returned."""
