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
from typing import Any, Literal, TypeAlias

import torch

from pytest_regional._base.errors import RegionalValueError
from pytest_regional._torch import fx_graphs
from pytest_regional._torch.tracing import base_of, view_like
from pytest_regional.harness.parity.objects import (
    copy_object,
    has_arithmetic,
    is_object,
    leaves_in,
    object_leaves,
    tensors_in,
    walk,
)
from pytest_regional.harness.parity.state import LOW_PRECISION_TO_FP64

FlatTransform = Callable[[torch.Tensor], torch.Tensor]

#: How copies of inputs use one storage: as the originals do (``"own"``), all as views of one tensor (``"views"``), or
#: as tensors that are no views of anything (``"storage"``).
Form: TypeAlias = Literal["own", "views", "storage"]


def named_leaves(inputs: tuple[Any, ...], kwargs: Mapping[str, Any] | None) -> list[tuple[str, Any]]:
    """Return every leaf of the arguments, and every leaf inside of those that are objects, as reports name them."""
    call = (tuple(inputs), dict(kwargs or {}))
    named = [(input_name(path), leaf) for path, leaf in fx_graphs.flatten_with_path(call)[0]]
    return [*named, *((where, leaf) for name, value in object_leaves(named) for where, leaf in walk(value, name))]


class CopiedInputs:
    """What :func:`copy_inputs` returns: the arguments to call with, and the leaves that receive their gradients."""

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()
        self.keywords: dict[str, Any] = {}
        self.named: list[tuple[str, torch.Tensor]] = []
        self.leaves: list[tuple[str, torch.Tensor]] = []
        self.inside: frozenset[str] = frozenset()
        #: Arguments that every run shares, because they cannot be copied; no tensors are inside of them.
        self.shared: list[tuple[str, Any]] = []

    def held(self) -> dict[str, Any]:
        """Return by name what the arguments hold by now, which may be other things than when they were given."""
        paths, structure = fx_graphs.flatten_with_path((self.arguments, self.keywords))
        named = [(input_name(path), leaf) for path, leaf in paths]
        inside = {where: leaf for name, value in named for where, leaf in leaves_in(value, name).items()}
        return {**inside, "containers of the inputs": sys.intern(str(structure))}


def input_name(path: tuple[Any, ...]) -> str:
    """Return how reports name what stands at a key path below ``(arguments, keywords)``.

    ``input 1['mask']`` is in the second argument, ``input ids`` is the keyword argument ``ids``.
    """
    _, which, *rest = path
    return f"input {which.key if hasattr(which, 'key') else which.idx}{fx_graphs.key_string(rest)}"


def copy_inputs(
    inputs: tuple[Any, ...],
    keep: Callable[[torch.Tensor], bool] = lambda tensor: False,
    transform: FlatTransform = torch.clone,
    kwargs: Mapping[str, Any] | None = None,
    *,
    form: Form = "own",
) -> CopiedInputs:
    """Copy every tensor of ``inputs`` and ``kwargs`` once, and the objects that may hold some; others are passed on.

    Args:
        inputs: a tuple of pytrees.
        keep: tells which tensors to pass uncopied (parameters given as inputs: the program may rely on identity).
        transform: maps the flat contents of one storage to the new contents, element for element.
        kwargs: pytrees by the names of the program's keyword arguments.
        form: how the copies of inputs that use one storage use it.

    Raises:
        RegionalValueError: an object holds tensors and cannot be copied.
    """
    call = (tuple(inputs), dict(kwargs or {}))
    named = [(input_name(path), leaf) for path, leaf in fx_graphs.flatten_with_path(call)[0]]
    objects = object_leaves(named)
    named += [item for name, value in objects for item in walk(value, name)]
    copier = _Copier(named, keep, transform, form)
    result = CopiedInputs()
    result.arguments, result.keywords = fx_graphs.map_leaves(copier.copy, call)
    result.inside = frozenset(where for name, value in objects for where, _ in tensors_in(value, name))
    result.shared = [(name, value) for name, value in objects if copier.copy(value) is value]
    for name, original in named:
        if id(original) in copier.tensors:
            argument, leaf = copier.tensors[id(original)]
            result.named.append((name, argument))
            result.leaves.append((name, leaf))
    return result


class _Copier:
    """Copies the leaves of one call: what several of them share, storages and objects, stays shared."""

    def __init__(
        self, named: list[tuple[str, Any]], keep: Callable[[torch.Tensor], bool], transform: FlatTransform, form: Form
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
            return _copy_generator(leaf)
        if isinstance(leaf, torch.Tensor) and not self.keep(leaf):
            return self._tensor(leaf)[0]
        return copy_object(self.names[id(leaf)], leaf, self.memo) if is_object(leaf) else leaf

    def _tensor(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the copy of a tensor, the same one each time, and the leaf that its gradient arrives at."""
        if id(leaf) not in self.tensors:
            self.tensors[id(leaf)] = self._view(leaf) or self._own(leaf)
        return self.tensors[id(leaf)]

    def _own(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        copied = _as_argument(leaf, _copy_data(leaf, self.storages, self.transform), self.shared)
        for tensor in copied:
            _keep_attributes(leaf, tensor)
        return copied

    def _view(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return the copy of a tensor as a view; None where the form wants none, or where none can be made."""
        if self.form == "storage" or not is_plainly_strided(leaf):
            return None
        return self._view_of_base(leaf) if self.form == "own" else self._view_of_storage(leaf)

    def _view_of_base(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        base = base_of(leaf)
        if base is None or not is_plainly_strided(base) or self.keep(base):
            return None
        self.bases.append(base)  # its id is to stay its own
        argument, end = self._tensor(base)
        view = view_like(leaf, argument)
        if view is None:
            return None
        _keep_attributes(leaf, view)
        if view.requires_grad:
            return view, end
        return (view.requires_grad_(), view) if leaf.requires_grad else (view, view)

    def _view_of_storage(self, leaf: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        if id(leaf.untyped_storage()) not in self.shared or isinstance(leaf, torch.nn.Parameter) or leaf.is_conj():
            return None
        data = _copy_data(leaf, self.storages, self.transform)
        _, flat = self.storages[id(leaf.untyped_storage())]
        if flat.dtype != data.dtype:
            return None
        view = flat.as_strided(data.shape, data.stride(), data.storage_offset()).requires_grad_(leaf.requires_grad)
        _keep_attributes(leaf, view)
        return view, view


#: Marks a tensor for Dynamo as one that stays at its address, which a copy does not.
_STATIC_ADDRESS = "_dynamo_static_input_type"


def _keep_attributes(original: torch.Tensor, tensor: torch.Tensor) -> None:
    """Give a copy what was set on the original, such as the marks of dynamic sizes; but no tensors."""
    for name, value in getattr(original, "__dict__", {}).items():
        if name != _STATIC_ADDRESS and not isinstance(value, torch.Tensor):
            setattr(tensor, name, copy.copy(value) if isinstance(value, set | dict | list) else value)


def _copy_generator(generator: torch.Generator) -> torch.Generator:
    copy = torch.Generator(device=generator.device)
    copy.set_state(generator.get_state())
    return copy


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
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and _is_ordinary(leaf)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    if tensor.device.type == "meta" or tensor.is_nested or tensor.is_quantized:
        return False
    return type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer)


def _copy_data(leaf: torch.Tensor, storages: dict[int, tuple[Any, torch.Tensor]], transform: FlatTransform) -> Any:
    if not is_plainly_strided(leaf):
        return transform(leaf.detach())
    detached = leaf.detach()
    storage = detached.untyped_storage()
    if id(storage) not in storages:
        flat = torch.empty(0, dtype=leaf.dtype, device=leaf.device)
        flat.set_(storage, 0, (storage.nbytes() // leaf.element_size(),), (1,))
        # The old storage is held so that its id stays its own for as long as the dictionary lives.
        storages[id(storage)] = (storage, transform(flat))
    contents = storages[id(storage)][1]
    copy = torch.empty(0, dtype=_dtype_in(contents, leaf), device=leaf.device)
    copy.set_(contents.untyped_storage(), leaf.storage_offset(), leaf.shape, leaf.stride())
    if leaf.is_conj():
        copy = copy.conj()
    return copy


def _dtype_in(contents: torch.Tensor, leaf: torch.Tensor) -> torch.dtype:
    if contents.element_size() == leaf.element_size():
        return leaf.dtype
    return contents.dtype


def _as_argument(original: torch.Tensor, data: torch.Tensor, shared: set[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return ``(argument, leaf)``: one tensor, except for inputs that were no leaves and can be given as such again."""
    if isinstance(original, torch.nn.Parameter):
        leaf: torch.Tensor = torch.nn.Parameter(data, requires_grad=original.requires_grad)
        return leaf, leaf
    leaf = data.detach().requires_grad_(original.requires_grad)
    if original.is_leaf or not original.requires_grad or not torch.is_grad_enabled():
        return leaf, leaf
    argument = leaf.clone()
    # A leaf cannot be changed in place, so a result of other computation stays one where that keeps its layout.
    alone = is_plainly_strided(original) and id(original.untyped_storage()) not in shared
    if alone and original.storage_offset() == 0 and argument.stride() == original.stride():
        return argument, leaf
    return leaf, leaf


def widen(flat: torch.Tensor) -> torch.Tensor:
    """Return a copy in float64 or complex128 where the dtype is a lower precision, else a copy."""
    return flat.to(LOW_PRECISION_TO_FP64.get(flat.dtype, flat.dtype), copy=True)


def to_float64(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return copies of ``inputs`` with every floating tensor in float64 and complex in complex128, layout kept."""
    return copy_inputs(inputs, transform=widen).arguments


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


def has_low_precision(tensors: list[torch.Tensor]) -> bool:
    """Say whether any of ``tensors`` has a dtype that a float64 run would refine."""
    return any(tensor.dtype in LOW_PRECISION_TO_FP64 for tensor in tensors)


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
    _write(tensor.detach(), new.to(tensor.dtype))


def _write(target: torch.Tensor, values: torch.Tensor) -> None:
    """Copy element by element in memory terms, so that expanded (self-overlapping) inputs can be written too."""
    for dim, (size, stride) in enumerate(zip(target.shape, target.stride(), strict=True)):
        if size > 1 and stride == 0:
            target, values = target.narrow(dim, 0, 1), values.narrow(dim, 0, 1)
    target.copy_(values)


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
    return old.masked_scatter(finite, _sorted_as(old, values, new))


def _sorted_as(old: torch.Tensor, values: torch.Tensor, new: torch.Tensor) -> torch.Tensor:
    if old.dim() != 1 or values.numel() < 3:
        return new
    if bool((values.diff() >= 0).all()):
        return new.sort().values
    return new.sort(descending=True).values if bool((values.diff() <= 0).all()) else new


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
