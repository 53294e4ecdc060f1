"""The compiled module: checks of its calls, saving and loading it, and the report of its passes as a table."""

from __future__ import annotations

import pickle
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
import torch.fx

from pytest_regional._torch.fx_graphs import (
    bodies_of,
    children_of_module,
    flatten,
    quietly,
    tensors_of_module,
    unflatten,
)
from pytest_regional._torch.joint_graph import CompiledJoint, evaluate_size_guards, load_compiled
from pytest_regional._torch.tracing import is_symbolic, plain_symbol, storage_key
from pytest_regional.reference.artifacts import PathLike, loadable, savable
from pytest_regional.reference.caching.container import ArtifactError, read_artifact, write_artifact
from pytest_regional.reference.caching.program import materialized
from pytest_regional.reference.regions import called_name

_REMEDY = "Capture and compile the model for such calls"


@dataclass(frozen=True)
class InputCheck:
    """One leaf of the arguments.

    Attributes:
        shape: Sizes: a number, the name of a symbol, or None if computed from others. Empty if not a tensor.
        dtype: None if not a tensor.
        device: As text.
        strides: Like ``shape``, but None if not a number; empty if not a tensor.
        requires_grad: Whether it may receive gradients in the captured graph.
        value: A leaf that is not a tensor is a constant of the graph.
    """

    shape: tuple[int | str | None, ...]
    dtype: torch.dtype | None
    device: str
    requires_grad: bool
    strides: tuple[int | None, ...] = ()
    value: Any = None

    @classmethod
    def of(cls, leaf: Any, fake: Any) -> InputCheck:
        """Describe an example input and its value in the trace."""
        if not isinstance(leaf, torch.Tensor):
            return cls((), None, "", requires_grad=False, value=leaf)
        seen = fake if isinstance(fake, torch.Tensor) else leaf
        shape = tuple(plain_symbol(size) if is_symbolic(size) else int(size) for size in seen.shape)
        strided = leaf.layout is torch.strided
        strides = tuple(None if is_symbolic(step) else int(step) for step in seen.stride()) if strided else ()
        return cls(shape, leaf.dtype, str(leaf.device), leaf.requires_grad and torch.is_grad_enabled(), strides)

    def complaint(self, leaf: Any) -> str | None:
        """Describe what is wrong with ``leaf``, or return None."""
        if self.dtype is None:
            return None if _same(leaf, self.value) else f"is {leaf!r}, and was captured as the constant {self.value!r}"
        if not isinstance(leaf, torch.Tensor):
            return f"is a {type(leaf).__name__}, and was captured as a tensor"
        if leaf.dtype != self.dtype:
            return f"has dtype {leaf.dtype}, and was captured with {self.dtype}"
        if str(leaf.device) != self.device:
            return f"is on {leaf.device}, and was captured on {self.device}"
        sizes = list(zip(leaf.shape, self.shape, strict=False))
        if leaf.dim() != len(self.shape) or any(type(was) is int and size != was for size, was in sizes):
            fixed = {was for size, was in sizes if size != was} & {0, 1}
            hint = f"; a size of {fixed.pop()} is never a symbol: capture with a larger example" if fixed else ""
            return (
                f"has shape {tuple(leaf.shape)}, and was captured with ({', '.join(map(str, self.shape))}); with "
                f"dynamic=True one compile serves several sizes{hint}"
            )
        # Strides matter where a dimension has more than one element.
        lies_alike = (
            leaf.layout is not torch.strided
            or not leaf.numel()
            or all(
                size < 2 or was is None or step == was
                for size, step, was in zip(leaf.shape, leaf.stride(), self.strides, strict=False)
            )
        )
        if not lies_alike:
            return f"has strides {leaf.stride()}, and was captured with ({', '.join(map(str, self.strides))})"
        if leaf.requires_grad and not self.requires_grad and torch.is_grad_enabled():
            return "requires gradients, and gets none in what was captured (frozen then, or under no_grad)"
        return None


def _same(leaf: Any, value: Any) -> bool:
    """Compare constants; a NaN equals another NaN."""
    return type(leaf) is type(value) and bool(leaf == value or (leaf != leaf and value != value))


@dataclass(frozen=True)
class Aliases:
    """Which parameters, buffers and inputs are identical, by position.

    Attributes:
        same: pairs that were one tensor, and one input of the trace.
        storages: for each tensor the first one that it shares memory with; None if the model writes to none.
    """

    same: tuple[tuple[int, int], ...]
    storages: tuple[int, ...] | None

    @classmethod
    def of(cls, values: Sequence[Any], *, writes: bool) -> Aliases:
        """Describe the values of a capture."""
        first: dict[int, int] = {}
        same = []
        for index, value in enumerate(values):
            if isinstance(value, torch.Tensor):
                earlier = first.setdefault(id(value), index)
                same += [(earlier, index)] if earlier != index else []
        return cls(tuple(same), _storages(values) if writes else None)

    def complaint(self, values: Sequence[Any]) -> tuple[int, int, str] | None:
        """Return two positions and what is wrong with them, or None."""
        for one, other in self.same:
            if values[one] is not values[other]:
                return one, other, "are two tensors, and were one and the same when the model was captured"
        if self.storages is None:
            return None
        for index, (was, now) in enumerate(zip(self.storages, _storages(values), strict=True)):
            if was != now:
                return min(was, now), index, "share memory differently than when the model, which writes, was captured"
        return None


def _storages(values: Sequence[Any]) -> tuple[int, ...]:
    first: dict[int, int] = {}
    keys = [storage_key(value) for value in values]
    return tuple(index if key is None else first.setdefault(key, index) for index, key in enumerate(keys))


@dataclass(frozen=True)
class CallChecks:
    """All requirements of a call.

    Attributes:
        state: Parameters and buffers, by name, in the order of the graph.
        inputs: The leaves of the arguments.
        structure: Their nesting.
        keywords: Names of keyword arguments, in the order of the trace.
        symbols: Names of symbolic sizes, each with the leaf and dimension that determine it.
        guards: The trace's assumptions about them, as an expression.
        training: Which modules were in training mode.
        modes: Global modes that affect the model's ops.
        aliases: Which inputs are identical.
        gradients: Whether there is a backward.
        returns: The nesting of the results.
    """

    state: tuple[tuple[str, InputCheck], ...]
    inputs: tuple[InputCheck, ...]
    structure: Any
    keywords: tuple[str, ...]
    symbols: tuple[tuple[str, tuple[int, int]], ...]
    guards: str | None
    training: tuple[tuple[str, bool], ...]
    modes: tuple[tuple[str, Any], ...]
    aliases: Aliases
    gradients: bool
    returns: Any

    def flat(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Return the leaves of a call's arguments.

        Raises:
            ArtifactError: naming the invalid argument, and why.
        """
        if set(kwargs) != set(self.keywords):
            raise ArtifactError(
                f"the compiled model was captured with keyword arguments {list(self.keywords)} and is called with "
                f"{list(kwargs)}. {_REMEDY}."
            )
        leaves, structure = flatten((tuple(args), {name: kwargs[name] for name in self.keywords}))
        if structure != self.structure:
            raise ArtifactError(
                f"the compiled model was captured with arguments of another structure: {_shown(self.structure)} there, "
                f"{_shown(structure)} here. {_REMEDY}, or pass them in the same way."
            )
        for index, (check, leaf) in enumerate(zip(self.inputs, leaves, strict=True)):
            complaint = check.complaint(leaf)
            if complaint:
                raise ArtifactError(f"input {index} {complaint}. {_REMEDY}.")
        if not self.symbols:
            return leaves
        sizes = {name: int(leaves[index].shape[dimension]) for name, (index, dimension) in self.symbols}
        for index, check in enumerate(self.inputs):
            for dimension, name in enumerate(check.shape):
                if type(name) is str and leaves[index].shape[dimension] != sizes[name]:
                    raise ArtifactError(
                        f"input {index} has size {leaves[index].shape[dimension]} in dimension {dimension}, which was "
                        f"captured as the same size {name} as another that is {sizes[name]} now. {_REMEDY}."
                    )
        if self.guards and not evaluate_size_guards(self.guards, list(sizes.values())):
            raise ArtifactError(
                f"the compiled model does not hold for sizes {sizes}: tracing assumed {self.guards} "
                f"(t0 is the first of them). {_REMEDY}."
            )
        return leaves

    def check_module(self, module: torch.nn.Module) -> None:
        """Raise unless ``module`` is in the mode of its capture.

        Raises:
            ArtifactError: naming the first module in another mode, or a parameter that would get no gradient.
        """
        for name, mode in self.training:
            child = module.get_submodule(name)
            if child.training != mode:
                now, was = ("training", "evaluation") if child.training else ("evaluation", "training")
                raise ArtifactError(
                    f"module {name or 'the model'!r} is in {now} mode, and was captured in {was} mode. {_REMEDY}, "
                    f"one for each mode."
                )

    def check_aliases(self, state: Sequence[Any], leaves: Sequence[Any]) -> None:
        """Raise unless the same inputs are identical, or share memory, as at capture.

        Raises:
            ArtifactError: naming two that differ.
        """
        found = self.aliases.complaint([*state, *leaves])
        if found:
            one, other, what = found
            raise ArtifactError(f"{self._called(one)} and {self._called(other)} {what}. {_REMEDY}.")

    def _called(self, position: int) -> str:
        names = [name for name, _ in self.state]
        return repr(names[position]) if position < len(names) else f"input {position - len(names)}"

    def check_state(self, values: Sequence[Any]) -> None:
        """Raise unless parameters and buffers are unchanged, except for their values.

        Raises:
            ArtifactError: naming the first that differs.
        """
        for (name, check), value in zip(self.state, values, strict=True):
            complaint = check.complaint(value)
            if complaint:
                raise ArtifactError(f"{name!r} of the model {complaint}. Capture and compile the model as it is.")

    def check_modes(self) -> None:
        """Raise unless autocast and determinism are unchanged.

        Raises:
            ArtifactError: naming the mode that differs.
        """
        for (name, was), (_, now) in zip(self.modes, ambient_modes(), strict=True):
            if was != now:
                raise ArtifactError(f"{name} is {now}, and was {was} when the model was captured. {_REMEDY}.")


def _shown(structure: Any) -> str:
    return str(unflatten(["*"] * structure.num_leaves, structure)).replace("'*'", "*")


def ambient_modes() -> tuple[tuple[str, Any], ...]:
    """Return the global modes that affect a model's ops."""
    autocast = [
        (f"autocast on {device}", torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None)
        for device in ("cpu", "cuda")
    ]
    return (*autocast, ("the default dtype", torch.get_default_dtype()))


_REGISTRIES = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")


class CompiledModule(torch.nn.Module):  # type: ignore[misc]
    """A model whose forward and backward are compiled.

    It shares parameters, buffers and submodules with the original model: names, ``state_dict``, optimizers and
    ``.grad`` are the model's. A call that does not match the capture is an error, never a wrong result.

    Attributes:
        report: Effect and time of each pass.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        compiled: CompiledJoint,
        checks: CallChecks,
        report: PipelineReport | None = None,
    ) -> None:
        super().__init__()
        self.__dict__.update({name: model.__dict__[name] for name in _REGISTRIES})
        self._original = (model,)  # in a tuple, or it would be a submodule
        self.report = report
        self._compiled = compiled
        self._checks = checks
        # Where each parameter and buffer is stored, to detect replaced ones.
        self._slots: list[tuple[Mapping[str, Any], str]] = []
        for path, _ in checks.state:
            owner, _, name = path.rpartition(".")
            self._slots.append((tensors_of_module(model.get_submodule(owner), name), name))
        # The children of every module, which are part of the capture.
        self._parts: list[tuple[str, Mapping[str, Any], tuple[Any, ...]]] = []
        for path, module in model.named_modules():
            children = children_of_module(module)
            self._parts.append((path, children, tuple(children.values())))

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the compiled forward; autograd runs the compiled backward.

        Raises:
            ArtifactError: shapes, constants, modes or other properties differ from the capture.
        """
        checks = self._checks
        checks.check_modes()
        for path, registry, children in self._parts:
            now = tuple(registry.values())
            if len(now) != len(children) or any(one is not other for one, other in zip(now, children, strict=True)):
                raise ArtifactError(
                    f"submodules of {path or 'the model'!r} were replaced, added or removed since it was captured. "
                    f"Capture and compile the model as it is."
                )
        checks.check_module(self)
        inputs = checks.flat(args, kwargs)
        state = [registry[name] for registry, name in self._slots]
        checks.check_state(state)
        checks.check_aliases(state, inputs)
        values = [*state, *inputs]
        if checks.gradients and not torch.is_grad_enabled():
            # AOTAutograd's wrapper enables gradients: it relies on guards that reject such calls.
            values = [value.detach() if isinstance(value, torch.Tensor) else value for value in values]
        return unflatten(self._compiled(values), checks.returns)

    @property
    def training(self) -> bool:
        """The mode of the model; the compiled code is valid for the mode of its capture."""
        return bool(self._original[0].training)

    @training.setter
    def training(self, mode: bool) -> None:
        if "_original" in self.__dict__:
            self._original[0].training = mode

    def save(self, path: PathLike) -> None:
        """Write forward, backward and all that a call needs, without parameters, to ``path``, atomically.

        Raises:
            UnsavableArtifactError: it refers to something that cannot be stored in a file.
            ArtifactError: ``path`` is a directory, or others can write to its directory.
        """
        with savable():
            payload = pickle.dumps((dump_joint(self._compiled), self._checks, self.report))
        write_artifact(Path(path), payload, KIND)


def dump_joint(compiled: CompiledJoint) -> bytes:
    """Serialize ``compiled`` with its files of generated code."""
    return pickle.dumps((compiled.dump(), compiled.code_files()))


def load_joint(data: bytes) -> CompiledJoint:
    """Load the bytes of ``dump_joint``; neither Inductor nor the C++ compiler runs."""
    function, files = pickle.loads(data)
    with materialized(files):
        return load_compiled(function, files)


KIND = "compiled module"


def load(path: PathLike, model: torch.nn.Module) -> CompiledModule:
    """Return the compiled module in ``path``, with ``model``'s parameters; nothing is compiled.

    Raises:
        ArtifactError: no such artifact, or it is damaged, of another kind, torch or machine, or refers to something
            that this process lacks; or ``model`` lacks a parameter or buffer of the compiled code.
    """
    payload = read_artifact(Path(path), KIND)
    with loadable(Path(path)), quietly():
        function, checks, report = pickle.loads(payload)
        compiled = load_joint(function)
    _check_names(Path(path), model, checks)
    return CompiledModule(model, compiled, checks, report)


def _check_names(path: Path, model: torch.nn.Module, checks: CallChecks) -> None:
    there = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    missing = [name for name, _ in checks.state if name not in there]
    if missing:
        raise ArtifactError(
            f"{path} was compiled from a model with {', '.join(map(repr, missing[:5]))}, which "
            f"{type(model).__name__} does not have. Load it for the model that it was compiled from."
        )
    for name, check in checks.state:
        value = there[name]
        if tuple(value.shape) != check.shape or value.dtype != check.dtype:
            raise ArtifactError(
                f"{path} was compiled from a model whose {name!r} has shape {check.shape} and dtype {check.dtype}; "
                f"here it has {tuple(value.shape)} and {value.dtype}. Load it for the model that it was compiled from."
            )


Status = Literal["ran", "compiled", "disabled", "failed"]


@dataclass(frozen=True)
class PassReport:
    """One pass on one graph.

    Attributes:
        name: the pass.
        graph: the kind of graph.
        seconds: time of the pass itself, without checks of the graph and the report.
        ops_before: number of operators before, including those in bodies of higher-order operators.
        ops_after: the number after; None if no graph is left (``compiled``), or an unknown one.
        added: operators with more occurrences than before, and how many more.
        removed: operators with fewer occurrences than before, and how many fewer.
        status: ``ran``, ``compiled`` (a terminal pass), ``disabled`` or ``failed``.
        summary: the pass's own text on its run, from its optional method ``summary(graph)``.
    """

    name: str
    graph: str
    seconds: float = 0.0
    ops_before: int | None = None
    ops_after: int | None = None
    added: Mapping[str, int] = field(default_factory=dict)
    removed: Mapping[str, int] = field(default_factory=dict)
    status: Status = "ran"
    summary: str = ""

    @property
    def changed(self) -> bool:
        """Whether the graph has other operators than before."""
        return bool(self.added or self.removed)

    def cells(self) -> tuple[str, ...]:
        """Return the table row."""
        if self.status == "disabled":
            return self.graph, self.name, "", "", "; ".join(filter(None, (self.status, self.summary)))
        changes: str = self.status
        if changes == "ran":
            signs = [("-", self.removed), ("+", self.added)]
            parts = [f"{sign}{count} {name}" for sign, counts in signs for name, count in sorted(counts.items())]
            changes = ", ".join(parts) or "none"
        before, after = ("-" if count is None else str(count) for count in (self.ops_before, self.ops_after))
        what = "; ".join(filter(None, (changes, self.summary)))
        return self.graph, self.name, f"{self.seconds * 1e3:.2f}", f"{before} -> {after}", what


@dataclass(frozen=True)
class PipelineReport(Sequence[PassReport]):
    """The latest run on each kind of graph, pass by pass; ``str()`` is a table."""

    passes: tuple[PassReport, ...] = ()

    def __getitem__(self, index: Any) -> Any:
        return self.passes[index]

    def __len__(self) -> int:
        return len(self.passes)

    def __iter__(self) -> Iterator[PassReport]:
        return iter(self.passes)

    def on(self, graph: str) -> PipelineReport:
        """Return the rows of one kind of graph."""
        return PipelineReport(tuple(one for one in self.passes if one.graph == graph))

    def of(self, name: str) -> PipelineReport:
        """Return the rows of one pass."""
        return PipelineReport(tuple(one for one in self.passes if one.name == name))

    @property
    def seconds(self) -> float:
        """Time of all passes."""
        return sum(one.seconds for one in self.passes)

    def __str__(self) -> str:
        if not self.passes:
            return "no pass has run"
        rows = [("graph", "pass", "ms", "ops", "changes"), *(one.cells() for one in self.passes)]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            f"{graph:<{widths[0]}}  {name:<{widths[1]}}  {ms:>{widths[2]}}  {ops:>{widths[3]}}  {what}".rstrip()
            for graph, name, ms, ops, what in rows
        ]
        return "\n".join((lines[0], "  ".join("-" * width for width in widths), *lines[1:]))


def count_ops(gm: torch.fx.GraphModule, known: dict[int, Counter[str]] | None = None) -> Counter[str]:
    """Count the operators of ``gm`` by name; the body of a higher-order operator counts once for each call."""
    known = {} if known is None else known
    if id(gm) not in known:
        counts = known[id(gm)] = Counter()
        for node in gm.graph.nodes:
            if node.op not in ("placeholder", "output", "get_attr"):
                counts[called_name(node)] += 1
                for body in bodies_of(node):
                    counts.update(count_ops(body, known))
    return known[id(gm)]
