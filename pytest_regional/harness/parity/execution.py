"""Run a program once, on copies, and keep everything that another run of it can be compared with.

:func:`execute` is used alike for the eager program, the compiled one, and the float64 reference of tolerances. Nothing
here compares, and nothing here compiles; see ``compare`` for the first.
"""

from __future__ import annotations

import contextlib
import functools
import pickle
import random
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy
import torch

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._base.text import first_line
from pytest_regional.harness.isolation import random_state_kept, seed_everything
from pytest_regional.harness.parity.captured import Aliasing, Captured, FlatOutputs, capture, find_aliases
from pytest_regional.harness.parity.inputs import CopiedInputs, Form, copy_inputs, named_leaves, require_values, widen
from pytest_regional.harness.parity.objects import is_object, is_opaque
from pytest_regional.harness.parity.precision import (
    Precision,
    RecordedRandomOps,
    ReplayedRandomOps,
    Rounded,
    RoundsOperands,
    float64_everywhere,
    is_float,
)
from pytest_regional.harness.parity.state import (
    LOW_PRECISION_TO_FP64,
    Change,
    ProgramState,
    changes_between,
    described,
    find_state,
    preserved,
    promote,
)

Backward: TypeAlias = Any  # bool | None | torch.Tensor | Sequence[torch.Tensor] | Callable[[Any], torch.Tensor]

#: What holds state, is given as an argument, and is not copied: compiled code may rely on its identity.
_HELD = (torch.nn.Module, types.FunctionType, types.MethodType, functools.partial)
_AUTOCAST = ("cpu", "cuda")
#: Why programs of float64 have no float64 run that judges them.
NOTHING_NARROW = "no input, parameter or buffer has a precision below float64"


@dataclass(eq=False)
class Execution:
    """One run of a program."""

    #: ``(path, leaf)`` for each leaf of what was returned; tensors as :class:`Captured`
    outputs: tuple[tuple[str, Any], ...] = ()
    structure: Any = None  # the containers around the leaves; equal for equal containers
    #: paths of outputs that stand inside an object, which may have been there before the program ran
    in_objects: frozenset[str] = frozenset()
    #: gradient of each floating input and state tensor that requires one, None where none arrived
    grads: dict[str, Captured | None] = field(default_factory=dict)
    #: every input tensor as the program left it, and those that it put into containers and objects
    inputs_after: dict[str, Captured] = field(default_factory=dict)
    #: every buffer, parameter and captured tensor as the program left it, and new ones likewise
    buffers_after: dict[str, Captured] = field(default_factory=dict)
    #: by name, what the program changed besides tensors: in arguments, and in its own Python state
    changes: dict[str, Change] = field(default_factory=dict)
    not_compared: tuple[str, ...] = ()  # state that can neither be restored nor compared, with its type
    notes: tuple[str, ...] = ()  # lists that grew, and are neither restored nor compared either
    unrepeatable: bool = False  # of an eager run, whether another one differs, because of such state
    mutated: frozenset[str] = frozenset()  # names out of the two above whose bytes or shape the program changed
    aliases: dict[str, Aliasing] = field(default_factory=dict)  # whose memory each output uses
    exception: Exception | None = None  # what the program raised, and ``stage`` where: "forward" or "backward"
    stage: str = "forward"
    #: devices whose default generator moved, and names of other generators that did
    rng_consumed: frozenset[str] = frozenset()
    #: by name the final states of these generators, and of those of Python and numpy
    rng_after: dict[str, Any] = field(default_factory=dict)
    #: the tensors themselves behind ``outputs``, ``grads`` and ``inputs_after``, where they were to be kept
    live: dict[str, torch.Tensor] = field(default_factory=dict)
    #: why this run cannot be the float64 reference; None if it can, or was not meant as one
    fp64_unavailable_reason: str | None = None
    #: of an eager run, the same run in the coarser precision of the backend under test, if it has one
    coarse: Execution | None = None
    precision: Precision | None = None  # of a run in a coarser precision, that one

    def tensors(self) -> dict[str, Captured]:
        """Return by name all tensors: outputs, gradients, and inputs and state as the program left them."""
        named = {**dict(self.outputs), **self.grads, **self.inputs_after, **self.buffers_after}
        return {name: value for name, value in named.items() if isinstance(value, Captured)}


def execute(
    fn: Callable[..., Any],
    inputs: tuple[Any, ...],
    *,
    kwargs: Mapping[str, Any] | None = None,
    backward: Backward = None,
    seed: int = 0,
    state_of: Any = None,
    fp64: bool = False,
    keep: bool = False,
    precision: Precision | None = None,
    rounding: int | None = None,
    form: Form = "own",
    draws: int | None = None,
    autocast_backward: bool = False,
    output_edges: bool = False,
) -> Execution:
    """Run ``fn`` on copies of ``inputs`` and return what came of it; inputs, state and generators are left as found.

    Args:
        fn: a function, module, bound method or other callable.
        inputs: a tuple of pytrees; tensors are copied with layout and aliasing, and objects that may hold some; other
            leaves are passed as they are.
        kwargs: the program's keyword arguments, likewise.
        backward: None backpropagates from every output that requires a gradient, with seeded random cotangents;
            False does not; a callable gets the outputs and returns the scalar to backpropagate from; a tensor or a
            sequence of tensors are the cotangents of those outputs.
        seed: seeds the default generators, those of Python and numpy included, and the cotangents.
        state_of: the program whose parameters and buffers to keep, where ``fn`` hides it (a compiled callable).
        fp64: run everything in float64; whether that was possible stands in ``fp64_unavailable_reason``.
        keep: keep the resulting tensors themselves in ``live``, and not only copies of them.
        precision: round the operands of every operator to this one.
        rounding: a seed; every intermediate result is then moved at random by at most one unit in its last place, to
            see which results are rounding. Inputs and parameters stay.
        form: how copies of inputs that use one storage use it.
        draws: another seed than ``seed`` for the default generators; cotangents stay.
        autocast_backward: whether the backward runs in the autocast that this is called in. By default it runs outside,
            as PyTorch's documentation has it.
        output_edges: whether the gradient of each output with respect to each other one is taken as well.

    Raises:
        RegionalValueError: ``backward`` does not fit the outputs, a tensor is on the meta device, or an argument holds
            tensors and cannot be copied. What the program raises is returned, not raised.
    """
    leaves = named_leaves(inputs, kwargs)
    program = fn if state_of is None else state_of
    # Of an object that is copied, what its class holds remains.
    given = [
        (name, type(leaf) if is_object(leaf) else leaf)
        for name, leaf in leaves
        if is_object(leaf) or isinstance(leaf, _HELD)
    ]
    state = find_state(program, given)
    copied = copy_inputs(inputs, state.is_state, widen if fp64 else torch.clone, kwargs, form=form)
    if copied.shared:
        state = find_state(program, [*given, *copied.shared])
    require_values([*copied.named, *state.tensors])
    result = Execution(precision=precision)
    dtypes = [leaf.dtype for _, leaf in leaves if isinstance(leaf, torch.Tensor)]
    dtypes += [entry.tensor.dtype for entry in state.tensors]
    if fp64 and LOW_PRECISION_TO_FP64.keys().isdisjoint(dtypes):
        result.fp64_unavailable_reason = NOTHING_NARROW
        return result
    runner = _Program(fn, state, backward, seed, seed if draws is None else draws, autocast_backward, output_edges)
    result.not_compared = (*state.not_compared, *(described(name, leaf) for name, leaf in leaves if is_opaque(leaf)))
    with preserved(state):
        if fp64:
            runner.run_in_fp64(copied, result)
        else:
            with contextlib.nullcontext() if rounding is None else Rounded(rounding):
                runner.run(copied, result, keep=keep)
    if fp64 and result.rng_consumed and result.exception is None:
        result = runner.run_random_ops_in_fp64(inputs, kwargs) or result
    return result


@dataclass(frozen=True)
class _Program:
    """A program and its state, and how it is run; as the arguments of :func:`execute`."""

    fn: Callable[..., Any]
    state: ProgramState
    backward: Backward
    seed: int
    draws: int
    autocast_backward: bool
    output_edges: bool

    def run_in_fp64(self, copied: CopiedInputs, result: Execution) -> None:
        promote(entry.tensor for entry in self.state.tensors)
        with float64_everywhere():
            self.run(copied, result)
        if result.exception is not None:
            result.fp64_unavailable_reason = f"the float64 run raised {first_line(result.exception)}"
        elif result.rng_consumed:
            result.fp64_unavailable_reason = "the program draws random numbers, which differ between precisions"

    def run_random_ops_in_fp64(self, inputs: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> Execution | None:
        """Return the float64 run with the numbers that the program draws in its own precision; None if that fails."""
        recorded, fp64 = Execution(), Execution()
        with preserved(self.state), RecordedRandomOps() as is_random_op:
            self.run(copy_inputs(inputs, self.state.is_state, kwargs=kwargs), recorded)
        if recorded.exception is not None:
            return None
        with preserved(self.state), ReplayedRandomOps(is_random_op.recorded) as repeated:
            self.run_in_fp64(copy_inputs(inputs, self.state.is_state, widen, kwargs), fp64)
        return None if repeated.left or fp64.fp64_unavailable_reason else fp64

    def run(self, copied: CopiedInputs, result: Execution, *, keep: bool = False) -> None:
        watched = [*copied.named, *self.state.tensors]
        leaves = copied.leaves + [entry for entry in self.state.tensors if entry.tensor.is_leaf]
        wants_grad = [(name, leaf) for name, leaf in leaves if leaf.requires_grad]
        of_inputs = {name for name, _ in copied.named}
        before = {name: Captured.of(tensor, attributes=name in of_inputs) for name, tensor in watched}
        held = copied.held()
        cuda = sorted({tensor.device.index for _, tensor in watched if tensor.device.type == "cuda"})
        with self._seeded(copied, cuda, result):
            with _rounded(result):
                output = self._call(copied, result)
            if result.exception is None:
                flat = FlatOutputs(output)
                leaves_out, result.structure = flat.leaves, flat.structure
                result.in_objects = frozenset(flat.in_objects)
                # What arguments hold by now that they did not before the call may be aliased, too.
                known = {id(tensor) for _, tensor in watched}
                new = [(name, tensor) for name, tensor in _tensors(copied.held()).items() if id(tensor) not in known]
                result.aliases = find_aliases(leaves_out, watched + new)
                described = [(path, capture(leaf)) for path, leaf in leaves_out]
                edges = self._between_outputs(leaves_out, result)
                if result.exception is None:
                    self._backpropagate(output, leaves_out, result)
                result.outputs = tuple(described)
        if result.exception is None:
            if result.stage == "backward":
                result.grads = {f"grad of {name}": _captured(leaf.grad) for name, leaf in wants_grad}
            result.grads |= edges
        after = copied.held()
        given, (own, changes) = {**dict(copied.named), **_tensors(after)}, self.state.now()
        result.changes = {**changes_between(held, after), **changes}
        result.notes = self.state.notes()
        result.inputs_after = {name: Captured.of(tensor, attributes=True) for name, tensor in given.items()}
        result.buffers_after = {label: Captured.of(tensor) for label, tensor in own.items()}
        result.mutated = frozenset(
            name
            for name, value in {**result.inputs_after, **result.buffers_after}.items()
            if name not in before or not value.same_as(before[name])
        )
        if keep and result.exception is None:
            result.live = {path: leaf for path, leaf in leaves_out if isinstance(leaf, torch.Tensor)}
            result.live |= {f"grad of {name}": leaf.grad for name, leaf in wants_grad if leaf.grad is not None}
            result.live |= given

    def _call(self, copied: CopiedInputs, result: Execution) -> Any:
        try:
            output = self.fn(*copied.arguments, **copied.keywords)
            if any(tensor.device.type == "cuda" for _, tensor in copied.named):
                torch.cuda.synchronize()
        except Exception as error:  # noqa: BLE001 - whatever the program raises is a result to be compared.
            result.exception = error
            return None
        return output

    @contextlib.contextmanager
    def _seeded(self, copied: CopiedInputs, cuda: list[int], result: Execution) -> Iterator[None]:
        leaves = named_leaves(copied.arguments, copied.keywords)
        given = {name: leaf for name, leaf in leaves if isinstance(leaf, torch.Generator)} | self.state.generators()
        with random_state_kept(), torch.random.fork_rng(devices=cuda):
            seed_everything(self.draws)
            before = _generators(given, cuda)
            yield
            after = _generators(given, cuda)
            result.rng_consumed = frozenset(n for n, s in after.items() if not torch.equal(s, before[n]))
            result.rng_after = {**after, "Python": random.getstate(), "numpy": pickle.dumps(numpy.random.get_state())}

    def _backpropagate(self, output: Any, leaves: list[tuple[str, Any]], result: Execution) -> None:
        backward = self.backward
        if backward is False or not torch.is_grad_enabled():
            return
        differentiable = [leaf for _, leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.requires_grad]
        if callable(backward):
            roots, cotangents = [backward(output)], None
        elif not differentiable:
            return
        else:
            roots, cotangents = differentiable, cotangents_for(differentiable, backward, self.seed)
        result.stage = "backward"
        try:
            with contextlib.nullcontext() if self.autocast_backward else _without_autocast(), _rounded(result):
                torch.autograd.backward(roots, cotangents)
            if any(root.device.type == "cuda" for root in roots):
                torch.cuda.synchronize()  # what goes wrong on the GPU is a result of the backward
        except Exception as error:  # noqa: BLE001 - whatever the program's backward raises is a result to be compared.
            result.exception = error

    def _between_outputs(self, leaves: list[tuple[str, Any]], result: Execution) -> dict[str, Captured | None]:
        """Return the gradient of each output with respect to each other one, None where no path leads there."""
        outputs = [(path, leaf) for path, leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.grad_fn is not None]
        found: dict[str, Captured | None] = {}
        if not self.output_edges or not torch.is_grad_enabled():
            return found
        try:
            for index, (path, root) in enumerate(outputs):
                others = {name: leaf for name, leaf in outputs if leaf is not root}
                if not others:
                    continue
                wanted, cotangent = list(others.values()), random_cotangent(root, self.seed, index)
                with _without_autocast(), _rounded(result):
                    grads = torch.autograd.grad(root, wanted, cotangent, retain_graph=True, allow_unused=True)
                for name, grad in zip(others, grads, strict=True):
                    found[f"grad of {name} from {path}"] = _captured(grad)
        except Exception as error:  # noqa: BLE001 - as of the backward itself
            result.exception, result.stage = error, "backward"
        return found


def _rounded(result: Execution) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if result.precision is None else RoundsOperands(result.precision)


def _captured(tensor: torch.Tensor | None) -> Captured | None:
    return None if tensor is None else Captured.of(tensor)


def in_autocast() -> bool:
    """Say whether an autocast surrounds the caller."""
    return any(map(torch.is_autocast_enabled, _AUTOCAST))


@contextlib.contextmanager
def _without_autocast() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for device in filter(torch.is_autocast_enabled, _AUTOCAST):
            stack.enter_context(torch.autocast(device, enabled=False))
        yield


def _generators(given: Mapping[str, torch.Generator], cuda: list[int]) -> dict[str, torch.Tensor]:
    devices = {"cpu": torch.get_rng_state(), **{f"cuda:{index}": torch.cuda.get_rng_state(index) for index in cuda}}
    return {**devices, **{name: generator.get_state() for name, generator in given.items()}}


def other_generators(first: Execution, second: Execution) -> list[str]:
    """Return the names of the random generators that two runs, which started alike, left in different states."""
    found = []
    for name, state in first.rng_after.items():
        other = second.rng_after.get(name)
        are_tensors = isinstance(state, torch.Tensor) and isinstance(other, torch.Tensor)
        if not (torch.equal(state, other) if are_tensors else state == other):
            found.append(name)
    return found


def cotangents_for(outputs: list[torch.Tensor], backward: Any, seed: int) -> list[torch.Tensor]:
    """Return what to backpropagate into ``outputs``: the caller's cotangents, checked, or seeded random ones."""
    if backward is None or backward is True:
        return [random_cotangent(tensor, seed, index) for index, tensor in enumerate(outputs)]
    given = [backward] if isinstance(backward, torch.Tensor) else list(backward)
    if [tuple(tensor.shape) for tensor in given] != [tuple(tensor.shape) for tensor in outputs]:
        raise RegionalValueError(
            f"backward= holds cotangents of shapes {[tuple(tensor.shape) for tensor in given]}, but the outputs that "
            f"require a gradient have shapes {[tuple(tensor.shape) for tensor in outputs]}. "
            f"Pass one cotangent of equal shape for each of them, in their order."
        )
    return [tensor.to(output.dtype) for tensor, output in zip(given, outputs, strict=True)]


def random_cotangent(output: torch.Tensor, seed: int, index: int) -> torch.Tensor:
    """Return the cotangent of output number ``index``: the same values for every run of one program.

    They are nonzero multiples of 1/16 up to 2 in magnitude, which every dtype from bfloat16 to float64 holds exactly,
    so the float64 run backpropagates the very same numbers.
    """
    generator = torch.Generator().manual_seed((seed * 1_000_003 + index) % 2**63)
    return _cotangent(output.detach(), generator)


def _cotangent(output: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    if output.is_nested and output.layout == torch.strided:
        return torch.nested.nested_tensor([_cotangent(part, generator) for part in output.unbind()])
    if hasattr(output, "__tensor_flatten__"):
        shell: Any = output
        names, context = shell.__tensor_flatten__()
        inside = {name: getattr(output, name) for name in names}
        made = {name: _cotangent(one, generator) if is_float(one.dtype) else one for name, one in inside.items()}
        around: torch.Tensor = shell.__tensor_unflatten__(made, context, output.shape, output.stride())
        return around.detach()
    sixteenths = torch.randint(1, 33, output.shape, generator=generator)
    signs = torch.randint(0, 2, output.shape, generator=generator) * 2 - 1
    values = (sixteenths * signs).double() / 16
    if output.layout != torch.strided:
        dense = values.to(output)
        return dense.to_mkldnn() if output.is_mkldnn else dense.sparse_mask(output)
    return torch.empty_like(output).copy_(values)


def _tensors(held: Mapping[str, Any]) -> dict[str, torch.Tensor]:
    return {name: leaf for name, leaf in held.items() if isinstance(leaf, torch.Tensor)}
