"""The oracles ``alias_probe`` and ``input_forms``: who shares memory with whom, and inputs that share it otherwise."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from pytest_regional._torch.tracing import is_zero_tensor
from pytest_regional.fuzz.model.evaluation import Memory
from pytest_regional.fuzz.oracles.example_run import ExampleRun
from pytest_regional.fuzz.oracles.oracle import NoClaim, Oracle, kinds_of
from pytest_regional.fuzz.oracles.parity import mismatches_of, raise_failure, without_fake_strides
from pytest_regional.harness.parity.captured import dense_value
from pytest_regional.harness.parity.compare import BadProgramError, Mismatch
from pytest_regional.harness.parity.inputs import other_form
from pytest_regional.harness.parity.state import same_bytes


def check_alias_probe(example: ExampleRun) -> None:
    """Raise where a write to a result or an input shows elsewhere than in eager, or in a further call."""
    run = example.cold
    if run.error is not None:
        raise NoClaim("the program does not run")
    eager, ours = moved_by_writes(example.expected[0].eager.live), moved_by_writes(run.executions[0].live)
    found = [
        Mismatch(name, "alias", f"a write to it shows in {_named(ours[name])}, in eager in {_named(eager[name])}")
        for name in eager
        if name in ours and eager[name] != ours[name]
    ]
    if not found:
        again = example.execute(run.compiled, example.expected[0].inputs)
        expected = example.expected[0]
        found = [
            Mismatch(mismatch.where, mismatch.kind, f"after writes to the results of other calls: {mismatch.detail}")
            for mismatch in without_fake_strides(example, expected.inputs, expected.compared(again).mismatches)
        ]
    if found:
        detail = "; ".join(map(str, found[:4]))
        raise example.violation("alias_probe", "run", detail, origin=kinds_of(found))


def moved_by_writes(live: Mapping[str, torch.Tensor]) -> dict[str, frozenset[str]]:
    """Write to each tensor in turn, and return by its name the names of all others that hold other bytes then.

    The tensors keep what was written. A tensor that no write changes is left out, and so is one that cannot be written
    to, as it is zeros without memory.
    """
    moved: dict[str, frozenset[str]] = {}
    with torch.no_grad():
        for name, tensor in live.items():
            if is_zero_tensor(tensor):
                continue
            before = {other: dense_value(one) for other, one in live.items()}
            _change(tensor.detach())
            changed = frozenset(other for other, one in live.items() if not same_bytes(dense_value(one), before[other]))
            if name in changed:
                moved[name] = changed - {name}
    return moved


def _change(tensor: torch.Tensor) -> None:
    """Change each element of ``tensor``; where several are one in memory, that one."""
    for dim, (size, stride) in enumerate(zip(tensor.shape, tensor.stride(), strict=True)):
        if size > 1 and stride == 0:
            tensor = tensor.narrow(dim, 0, 1)
    if tensor.dtype == torch.bool:
        tensor.logical_not_()
    else:
        # Adding 1 leaves NaN, infinity and large numbers as they are.
        tensor.copy_(torch.where(tensor == 1, torch.full_like(tensor, 2), torch.ones_like(tensor)))


def _named(names: frozenset[str]) -> str:
    return ", ".join(sorted(names)) or "nothing else"


def check_input_forms(example: ExampleRun) -> None:
    """Raise where the program, called with inputs that use their common storage in another form, differs from eager."""
    form = other_form(example.expected[0].inputs)
    if form is None:
        raise NoClaim("no inputs use one storage")
    if form == "storage" and example.trains and Memory(example.program).inputs_written:
        raise NoClaim("AOTAutograd trains with writes to inputs of one storage only if they are views of one tensor")
    other = example.of(example.program, form=form)
    try:
        _ = other.expected
    except BadProgramError as error:
        raise NoClaim("eager refuses the program with inputs in that form") from error
    raise_failure(other, other.cold, "input_forms")
    mismatches = without_fake_strides(other, other.expected[0].inputs, mismatches_of(other, other.cold))
    if mismatches:
        said = "views of one tensor" if form == "views" else "tensors of one storage that are no views"
        detail = f"with inputs as {said}: {'; '.join(map(str, mismatches[:4]))}"
        raise example.violation("input_forms", "run", detail, origin=kinds_of(mismatches))


ORACLES = (
    Oracle(
        "alias_probe",
        "A write to a result or an input shows where it does in eager, and in no further call.",
        check_alias_probe,
    ),
    Oracle(
        "input_forms",
        "Inputs of one storage may be views of one tensor, or no views.",
        check_input_forms,
        every=2,
    ),
)

__all__ = ["ORACLES", "moved_by_writes"]
