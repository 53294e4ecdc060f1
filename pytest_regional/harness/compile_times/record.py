"""What was measured of one program's compiles."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from pytest_regional._text import plural
from pytest_regional._torch.compile_phases import PHASES, TOTAL, checked_phase

#: What makes the median absolute deviation of a normal distribution its standard deviation.
_MAD_TO_DEVIATION = 1.4826


@dataclass(frozen=True)
class MeasuredTime:
    """How long one thing took in each of several compiles.

    Attributes:
        seconds: time of each, in the order in which they were made.
    """

    seconds: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median, in seconds."""
        return median(self.seconds)

    @property
    def noise(self) -> float:
        """How far times are from the median, relative to it: the median absolute deviation, as a standard deviation."""
        middle = self.median
        return _MAD_TO_DEVIATION * median(abs(one - middle) for one in self.seconds) / middle if middle else 0.0

    def __str__(self) -> str:
        return f"{self.median:.3f} s (noise {self.noise:.0%})"


@dataclass(frozen=True)
class CompileTimes:
    """What :meth:`Regional.compile_times` measured; ``str()`` of it is a table.

    Attributes:
        backend: the name of the backend that compiled.
        program: what was compiled, as messages call it.
        compiles: of each compile, the seconds by phase and by what is compiled (``"region mlp of the forward graph"``,
            ``"the forward graph"``; empty for what comes before a graph).
        not_measured: phases that the installed torch does not tell from others.
        clock: ``"wall"`` or ``"cpu"``.
    """

    backend: str
    program: str
    compiles: tuple[Mapping[tuple[str, str], float], ...]
    not_measured: tuple[str, ...] = ()
    clock: str = "cpu"

    @property
    def total(self) -> MeasuredTime:
        """All phases together, without what the compiled program itself takes."""
        return self._sums(lambda phase, what: True)

    @property
    def phases(self) -> dict[str, MeasuredTime]:
        """The phases that can be measured, by name. They add up to the total."""
        return {name: self.phase(name) for name in PHASES if name not in self.not_measured}

    def phase(self, name: str | None = None) -> MeasuredTime:
        """Return the time of one phase; of all for ``None`` or ``"total"``.

        Raises:
            RegionalValueError: a name that is no phase.
        """
        asked = checked_phase(name)
        return self._sums(lambda phase, what: asked in (TOTAL, phase))

    def parts(self, name: str | None = None) -> dict[str, MeasuredTime]:
        """Return the time of each graph and region in one phase, or in all of them, the slowest first.

        Where a backend compiles a graph as a whole, Inductor for example, its regions cannot be told apart.
        """
        asked = checked_phase(name)
        names = dict.fromkeys(what for times in self.compiles for _, what in times if what)
        found = {one: self._sums(_is_part(one, asked)) for one in names}
        return dict(sorted(found.items(), key=lambda item: -item[1].median))

    def _sums(self, wanted: Callable[[str, str], bool]) -> MeasuredTime:
        return MeasuredTime(tuple(sum(s for key, s in times.items() if wanted(*key)) for times in self.compiles))

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"{self.program} on {self.backend}, {plural(len(self.compiles), 'compile')}, {self.clock} time"
        for name, time in {TOTAL: self.total, **self.phases}.items():
            yield f"  {name:<13} {time}"
        for name in self.not_measured:
            yield f"  {name:<13} not measured with this torch"
        for what, time in self.parts().items():
            yield f"  {time}  {what}"


def _is_part(one: str, asked: str) -> Callable[[str, str], bool]:
    return lambda phase, what: what == one and asked in (TOTAL, phase)
