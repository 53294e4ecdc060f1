"""Copies of a program's inputs: exact ones, float64 ones, and ones with new values.

All three keep what a compiler can see of an input besides its values: dtype (except for float64), shape, strides,
storage offset, ``requires_grad``, device, which inputs use one storage, and which are views, of what. They
copy storage by storage for that.

AOTAutograd takes one path for inputs that are views of one tensor, and another for tensors that use one storage and are
no views, as ``detach`` makes them. Copies have the form of their originals unless another :data:`Form` is named.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch import fx_graphs
from pytest_regional._torch.tracing import base_of, view_like
from pytest_regional.harness.parity.objects import copy_object, has_arithmetic, is_object, leaves_in, tensors_in, walk
from pytest_regional.harness.parity.state import LOW_PRECISION_TO_FP64

Transform = Callable[[torch.Tensor], torch.Tensor]

#: How copies of inputs use one storage: as the originals do (``"own"``), all as views of one tensor (``"views"``), or
#: as tensors that are no views of anything (``"storage"``).
Form: TypeAlias = Literal["own", "views", "storage"]


def named_leaves(inputs: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """Return every leaf of the arguments, and every leaf inside of those that are objects, as reports name them."""
    call = (tuple(inputs), dict(kwargs or {}))
    named = [(_input_name(path), leaf) for path, leaf in fx_graphs.flatten_with_path(call)[0]]
    return named + [item for name, value in named if is_object(value) for item in walk(value, name)]


@dataclass(frozen=True, eq=False)
class CopiedInputs:
    """What :func:`copy_inputs` returns: the arguments to call with, and the leaves that receive their gradients."""

    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    named: list[tuple[str, torch.Tensor]]
    leaves: list[tuple[str, torch.Tensor]]
    inside: frozenset[str]  # names of the tensors inside of objects
    shared: list[tuple[str, Any]]  # those of every run, because they cannot be copied; no tensors are inside of them

    def held(self) -> dict[str, Any]:
        """Return by name what the arguments hold by now, which may be other things than when they were given."""
        paths, structure = fx_graphs.flatten_with_path((self.arguments, self.keywords))
        inside = {where: leaf for path, value in paths for where, leaf in leaves_in(value, _input_name(path)).items()}
        return {**inside, "containers of the inputs": sys.intern(str(structure))}


def _input_name(path: tuple[Any, ...]) -> str:
    """Return how reports name what stands at a key path below ``(arguments, keywords)``.

    ``input 1['mask']`` is in the second argument, ``input ids`` is the keyword argument ``ids``.
    """
    _, which, *rest = path
    return f"input {which.key if hasattr(which, 'key') else which.idx}{fx_graphs.key_string(rest)}"


def copy_inputs(
    inputs: tuple[Any, ...],
    keep: Callable[[torch.Tensor], bool] = lambda tensor: False,
    transform: Transform = torch.clone,
    kwargs: Mapping[str, Any] | None = None,
    *,
    form: Form = "own",
) -> CopiedInputs:
    """Copy every tensor of ``inputs`` and ``kwargs``, pytrees, once, and the objects that may hold some.

    Other leaves are passed on, and so are tensors that ``keep`` names: parameters given as inputs, on the identity of
    which the program may rely. ``transform`` maps the flat contents of one storage to the new contents, element for
    element. ``form`` is how the copies of inputs that use one storage use it.
    """
    call = (tuple(inputs), dict(kwargs or {}))
    paths = fx_graphs.flatten_with_path(call)[0]
    objects = [(_input_name(path), leaf) for path, leaf in paths if is_object(leaf)]
    named = named_leaves(inputs, kwargs)
    copier = _Copier(named, keep, transform, form)
    arguments, keywords = fx_graphs.map_leaves(copier.copy, call)
    tensors = [(name, *copier.tensors[id(leaf)]) for name, leaf in named if id(leaf) in copier.tensors]
    return CopiedInputs(
        arguments=arguments,
        keywords=keywords,
        named=[(name, argument) for name, argument, _ in tensors],
        leaves=[(name, leaf) for name, _, leaf in tensors],
        inside=frozenset(where for name, value in objects for where, _ in tensors_in(value, name)),
        shared=[(name, value) for name, value in objects if copier.copy(value) is value],
    )


class _Copier:
    """Copies the leaves of one call: what several of them share, storages and objects, stays shared."""

    def __init__(
        self, named: list[tuple[str, Any]], keep: Callable[[torch.Tensor], bool], transform: Transform, form: Form
    ) -> None:
        self.keep, self.transform, self.form = keep, transform, form
        self.names = {id(leaf): name for name, leaf in named}
        self.tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.storages: dict[int, tuple[Any, torch.Tensor]] = {}
        self.shared = _shared_storages([leaf for _, leaf in named], _root if form == "own" else id)
        self.bases: list[torch.Tensor] = []
        # What ``copy.deepcopy`` finds here by id it takes for the copy.
        self.memo: dict[int, Any] = {}
        for _, leaf in named:
            if isinstance(leaf, torch.Tensor | torch.nn.Module | torch.Generator):
                self.memo[id(leaf)] = self.copy(leaf)

    def copy(self, leaf: Any) -> Any:
        """Return the copy of a leaf, the same one each time."""
        if id(leaf) in self.memo:
            return self.memo[id(leaf)]
        if isinstance(leaf, torch.Generator):
            return leaf.clone_state()
        if isinstance(leaf, torch.Tensor) and not self.keep(leaf):
            return self._tensor(leaf)[0]
        return copy_object(self.names[id(leaf)], leaf, self.memo) if is_object(leaf) else leaf

    def _tensor(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the copy of a tensor, the same one each time, and the leaf that its gradient arrives at."""
        if id(leaf) not in self.tensors:
            copied = None
            if self.form != "storage" and is_plainly_strided(leaf):
                copied = self._view_of_base(leaf) if self.form == "own" else self._view_of_storage(leaf)
            self.tensors[id(leaf)] = copied or self._as_argument(leaf)
            _keep_attributes(leaf, self.tensors[id(leaf)][0])
        return self.tensors[id(leaf)]

    def _as_argument(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ``(argument, end)``: one tensor, except for inputs that were no leaves and can be given so again."""
        data = self._data(leaf)
        if isinstance(leaf, torch.nn.Parameter):
            end: torch.Tensor = torch.nn.Parameter(data, requires_grad=leaf.requires_grad)
            return end, end
        end = data.detach().requires_grad_(leaf.requires_grad)
        if leaf.is_leaf or not leaf.requires_grad or not torch.is_grad_enabled():
            return end, end
        argument = end.clone()
        # A leaf cannot be changed in place, so a result of other computation stays one where that keeps its layout.
        alone = is_plainly_strided(leaf) and id(leaf.untyped_storage()) not in self.shared
        if alone and leaf.storage_offset() == 0 and argument.stride() == leaf.stride():
            _keep_attributes(leaf, end)
            return argument, end
        return end, end

    def _data(self, leaf: torch.Tensor) -> torch.Tensor:
        """Return a tensor like ``leaf`` in the copy of its storage."""
        detached = leaf.detach()
        if not is_plainly_strided(leaf):
            return self.transform(detached)
        storage = detached.untyped_storage()
        if id(storage) not in self.storages:
            flat = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
            flat.set_(storage, 0, (storage.nbytes() // leaf.element_size(),), (1,))
            # The old storage is held so that its id stays its own for as long as the dictionary lives.
            self.storages[id(storage)] = (storage, self.transform(flat))
        contents = self.storages[id(storage)][1]
        dtype = leaf.dtype if contents.element_size() == leaf.element_size() else contents.dtype
        copy = torch.empty(0, dtype=dtype, device=leaf.device)
        copy.set_(contents.untyped_storage(), leaf.storage_offset(), leaf.shape, leaf.stride())
        return copy.conj() if leaf.is_conj() else copy

    def _view_of_base(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the copy of a view as a view of the copy of its base; None where it is none, or none can be made."""
        base = base_of(leaf)
        if base is None or not is_plainly_strided(base) or self.keep(base):
            return None
        self.bases.append(base)  # its id is to stay its own
        argument, end = self._tensor(base)
        view = view_like(leaf, argument)
        if view is None:
            return None
        if view.requires_grad:
            return view, end
        return (view.requires_grad_(), view) if leaf.requires_grad else (view, view)

    def _view_of_storage(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        if id(leaf.untyped_storage()) not in self.shared or isinstance(leaf, torch.nn.Parameter) or leaf.is_conj():
            return None
        data = self._data(leaf)
        _, flat = self.storages[id(leaf.untyped_storage())]
        if flat.dtype != data.dtype:
            return None
        view = flat.as_strided(data.shape, data.stride(), data.storage_offset()).requires_grad_(leaf.requires_grad)
        return view, view


def _keep_attributes(original: torch.Tensor, tensor: torch.Tensor) -> None:
    """Give a copy what was set on the original, such as the marks of dynamic sizes; but no tensors."""
    for name, value in getattr(original, "__dict__", {}).items():
        # Dynamo's mark of one that stays at its address, which a copy does not.
        if name != "_dynamo_static_input_type" and not isinstance(value, torch.Tensor):
            setattr(tensor, name, copy.copy(value) if isinstance(value, set | dict | list) else value)


def _shared_storages(tree: Any, owner: Callable[[torch.Tensor], int] = id) -> set[int]:
    owners: dict[int, set[int]] = {}
    for leaf in fx_graphs.flatten(tree)[0]:
        if is_plainly_strided(leaf):
            owners.setdefault(id(leaf.untyped_storage()), set()).add(owner(leaf))
    return {storage for storage, tensors in owners.items() if len(tensors) > 1}


def _root(tensor: torch.Tensor) -> int:
    """Return whose view a tensor is, itself where it is none."""
    base = base_of(tensor)
    return id(tensor if base is None else base)


def other_form(inputs: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> Form | None:
    """Return the form that arguments with a common storage do not have; None where none have one."""
    leaves = [leaf for _, leaf in named_leaves(inputs, kwargs)]
    shared = _shared_storages(leaves)
    sharing = [leaf for leaf in leaves if is_plainly_strided(leaf) and id(leaf.untyped_storage()) in shared]
    if not sharing:
        return None
    return "views" if all(base_of(leaf) is None for leaf in sharing) else "storage"


def is_plainly_strided(leaf: Any) -> bool:
    """Say whether ``leaf`` is an ordinary tensor: memory and strides, no subclass that behaves otherwise."""
    if not isinstance(leaf, torch.Tensor) or leaf.layout != torch.strided or leaf.device.type == "meta":
        return False
    ordinary = type(leaf) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)
    return ordinary and not leaf.is_nested and not leaf.is_quantized


def widen(flat: torch.Tensor) -> torch.Tensor:
    """Return a copy in float64 or complex128 where the dtype is a lower precision, else a copy."""
    return flat.to(LOW_PRECISION_TO_FP64.get(flat.dtype, flat.dtype), copy=True)


def require_values(named: Iterable[tuple[str, torch.Tensor]]) -> None:
    """Raise :class:`RegionalValueError` for tensors on the meta device, naming them."""
    names = [name for name, tensor in named if tensor.device.type == "meta"]
    if names:
        shown = ", ".join(names[:5]) + (f" and {len(names) - 5} more" if len(names) > 5 else "")
        raise RegionalValueError(
            f"{shown}: on the meta device, where tensors have a shape and no values, so there is nothing to compare. "
            f"Make inputs on the device under test (regional.randn(...)), and give a module built on the meta device "
            f"its values first (module.to_empty(device=...), then its weights)."
        )


def fresh_inputs(inputs: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Return inputs of the same layout with other values: the positional ones of :func:`fresh_call`."""
    return fresh_call(inputs, {}, seed)[0]


def fresh_call(inputs: tuple[Any, ...], kwargs: Mapping[str, Any], seed: int) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return arguments of the same layout with other values, on which the same program must run as well.

    Floats are a permutation of the old finite values, each drawn in by a random factor of 0.75 to 1: same magnitude and
    signs, never outside the old range, NaN and infinities in place; a mask of two values is only permuted. Integers and
    bools are permuted along their first dimension longer than one, so that index ranges, unique indices in a row and
    rows of a mask stay valid. A sorted vector stays sorted. Integers that share memory with another input stay.
    """
    generator = torch.Generator().manual_seed(seed)
    copied = copy_inputs(inputs, kwargs=kwargs)
    shared = _shared_storages([tensor for _, tensor in copied.named])
    renewed: set[int] = set()
    with torch.no_grad():
        for name, tensor in copied.named:
            storage = id(tensor.untyped_storage()) if is_plainly_strided(tensor) else None
            stays = storage in shared and not tensor.is_floating_point()
            if storage is None or stays or id(tensor) in renewed or not has_arithmetic(tensor):
                continue
            renewed.add(id(tensor))
            # What counts or points, inside an object, fits the rest of it.
            if name not in copied.inside or tensor.is_floating_point():
                _renew(tensor, generator)
    return copied.arguments, copied.keywords


def _renew(tensor: torch.Tensor, generator: torch.Generator) -> None:
    old = tensor.detach().cpu()
    if old.is_floating_point():
        new = _fresh_floats(old.double(), generator)
    elif old.is_complex():
        new = torch.view_as_complex(_fresh_floats(torch.view_as_real(old.to(torch.complex128)), generator))
    else:
        new = _permuted_slices(old, generator)
    target = tensor.detach()
    # One element for each place in memory, so that expanded inputs, which overlap themselves, can be written to.
    for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and stride == 0:
            target, new = target.narrow(dim, 0, 1), new.narrow(dim, 0, 1)
    target.copy_(new)


def _fresh_floats(old: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    finite = torch.isfinite(old)
    values = old[finite]
    if values.numel() == 0:
        return old
    new = values[torch.randperm(values.numel(), generator=generator)]
    distinct = torch.unique(values).numel()
    if distinct != 2:
        new = new * (0.75 + 0.25 * torch.rand(new.shape, generator=generator, dtype=torch.float64))
    if distinct > 2:
        new = new.clamp(values.min(), values.max())
    if old.dim() == 1 and values.numel() > 2:  # a sorted vector stays sorted
        rises, falls = bool((values.diff() >= 0).all()), bool((values.diff() <= 0).all())
        new = new.sort(descending=not rises).values if rises or falls else new
    return old.masked_scatter(finite, new)


def _permuted_slices(old: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    dim = next((d for d, size in enumerate(old.shape) if size > 1), None)
    if dim is None:
        return old
    flat = old.reshape(-1).to(torch.int64)
    if flat.numel() == old.shape[dim] and old.dtype != torch.bool:
        differences = flat.diff()
        if bool((differences >= 0).all()) or bool((differences <= 0).all()):
            return old
    return old.index_select(dim, torch.randperm(old.shape[dim], generator=generator))
