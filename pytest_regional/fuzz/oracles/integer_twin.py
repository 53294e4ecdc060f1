"""The oracle ``integer_twin``: the program on small integers, where no tolerance is needed, gives eager's bits.

Tolerance for rounding hides what is smaller than it. The twin (:mod:`~pytest_regional.fuzz.model.integer_twin`) has the
program's structure and rounds nothing: outputs and written inputs whose ranges say so are compared bit for bit, but for
the signs of zeros where those depend on the order of a sum. Gradients are compared so where eager's backward, watched
operator by operator, rounds nothing either. What is left is compared as ``parity`` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

from pytest_regional.fuzz.model.integer_twin import IntegerTwin, NoTwinError, integer_twin
from pytest_regional.fuzz.operators.table import operator_named
from pytest_regional.fuzz.oracles.exact_arithmetic import RoundingWatch
from pytest_regional.fuzz.oracles.example_run import ExampleRun
from pytest_regional.fuzz.oracles.oracle import NoClaim, Oracle, kinds_of
from pytest_regional.fuzz.oracles.parity import mismatches_of, raise_failure, without_fake_strides
from pytest_regional.harness.parity.compare import BadProgramError
from pytest_regional.harness.parity.tolerance import Exactness

#: Families whose operators run others where no dispatch mode sees them.
_UNWATCHED = ("nested", "cond", "loop", "transform", "custom")


class TwinRun(ExampleRun):
    """A run of the twin of another run's program.

    Args:
        example: the other run.
        twin: the twin of its program.
    """

    def __init__(self, example: ExampleRun, twin: IntegerTwin) -> None:
        super().__init__(
            example.regional, twin.program, example.mode, blame=False, form=example.form, alone=example.alone
        )

    @cached_property
    def exact(self) -> Mapping[str, Exactness]:
        """The outputs, inputs and gradients of which every correct compile computes the same values."""
        gradients = [] if self.rounding_backward else range(len(self.program.arguments))
        return {**super().exact, **{f"grad of input {index}": Exactness(zeros=False) for index in gradients}}

    @cached_property
    def rounding_backward(self) -> str:
        """Why gradients are not compared without tolerance; empty where they are.

        Raises:
            BadProgramError: eager refuses the twin.
        """
        if not self.trains:
            return "it does not train"
        unwatched = {operator_named(step.operator).family for step in self.program.steps} & {*_UNWATCHED}
        if unwatched:
            return f"operators of {min(unwatched)} are not watched"
        for expected in self.expected:
            with self.regional._observer.paused(), RoundingWatch() as watch:
                self.execute(self.program.function, expected.inputs)
            if watch.rounding:
                return f"{watch.rounding} may round"
        return ""


def check_integer_twin(example: ExampleRun) -> None:
    """Raise where the integer twin of the program fails, or differs from eager in a bit."""
    if example.cold.error is not None:
        raise NoClaim("the program does not run")
    try:
        twin = integer_twin(example.program)
        run = TwinRun(example, twin)
        _ = run.expected
    except (NoTwinError, BadProgramError) as error:
        raise NoClaim(f"no twin: {error}" if isinstance(error, NoTwinError) else "eager refuses the twin") from error
    if all(twin.value_ranges[number].exact is False for number in twin.program.outputs) and run.rounding_backward:
        raise NoClaim(f"all outputs are rounded, by {', '.join(twin.rounded)}; gradients: {run.rounding_backward}")
    raise_failure(run, run.cold, "integer_twin")
    mismatches = without_fake_strides(run, run.expected[0].inputs, mismatches_of(run, run.cold))
    if mismatches:
        detail = f"on small integers, in the program below: {'; '.join(map(str, mismatches[:4]))}"
        raise run.violation("integer_twin", "run", detail, origin=kinds_of(mismatches))


ORACLES = (
    Oracle(
        "integer_twin",
        "The program on small integers, with operators that round exchanged, gives eager's bits.",
        check_integer_twin,
        every=4,
    ),
)

__all__ = ["ORACLES", "TwinRun"]
