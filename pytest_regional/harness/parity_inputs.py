"""Copies of a program's inputs: exact ones, float64 ones, and ones with new values.

All three keep what a compiler can see of an input besides its values: dtype (but for float64), shape, strides, storage
offset, ``requires_grad``, device, and which inputs are views of one storage. They work storage by storage for that.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from pytest_regional._torch import pytree
from pytest_regional.harness.parity_state import LOW_PRECISION_TO_ANCHOR

FlatTransform = Callable[[torch.Tensor], torch.Tensor]


class CopiedInputs:
    """What :func:`copy_inputs` returns: the arguments to call with, and the leaves that receive their gradients."""

    def __init__(self) -> None:
        self.arguments: tuple[Any, ...] = ()
        self.named: list[tuple[str, torch.Tensor]] = []
        self.leaves: list[tuple[str, torch.Tensor]] = []


def input_name(path: tuple[Any, ...]) -> str:
    """Return how reports name the input at a key path below the tuple of inputs: ``input 1['mask']``."""
    first, rest = path[0], path[1:]
    return f"input {first.idx}{pytree.key_string(rest)}"


def copy_inputs(
    inputs: tuple[Any, ...],
    keep: Callable[[torch.Tensor], bool] = lambda tensor: False,
    transform: FlatTransform = torch.clone,
) -> CopiedInputs:
    """Copy every tensor of ``inputs`` once; what is no tensor is passed as it is.

    Args:
        inputs: a tuple of pytrees.
        keep: tells which tensors to pass uncopied (parameters given as inputs: the program may rely on identity).
        transform: maps the flat contents of one storage to the new contents, element for element.
    """
    storages: dict[int, tuple[Any, torch.Tensor]] = {}
    copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
    shared = _shared_storages(inputs)

    def copy(leaf: Any) -> Any:
        if isinstance(leaf, torch.Generator):
            return _copy_generator(leaf)
        if not isinstance(leaf, torch.Tensor) or keep(leaf):
            return leaf
        if id(leaf) not in copies:
            data = _copy_data(leaf, storages, transform)
            copies[id(leaf)] = _as_argument(leaf, data, shared)
        return copies[id(leaf)][0]

    result = CopiedInputs()
    result.arguments = pytree.map_leaves(copy, tuple(inputs))
    for path, original in pytree.flatten_with_path(tuple(inputs))[0]:
        if id(original) in copies:
            argument, leaf = copies[id(original)]
            result.named.append((input_name(path), argument))
            result.leaves.append((input_name(path), leaf))
    return result


def _copy_generator(generator: torch.Generator) -> torch.Generator:
    copy = torch.Generator(device=generator.device)
    copy.set_state(generator.get_state())
    return copy


def _shared_storages(inputs: tuple[Any, ...]) -> set[int]:
    owners: dict[int, set[int]] = {}
    for _, leaf in pytree.flatten_with_path(tuple(inputs))[0]:
        if is_plainly_strided(leaf):
            owners.setdefault(id(leaf.untyped_storage()), set()).add(id(leaf))
    return {storage for storage, tensors in owners.items() if len(tensors) > 1}


def is_plainly_strided(leaf: Any) -> bool:
    """Say whether ``leaf`` is an ordinary tensor: memory and strides, no subclass with a behaviour of its own."""
    return isinstance(leaf, torch.Tensor) and leaf.layout == torch.strided and _is_ordinary(leaf)


def _is_ordinary(tensor: torch.Tensor) -> bool:
    return type(tensor) in (torch.Tensor, torch.nn.Parameter, torch.nn.Buffer) and tensor.device.type != "meta"


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
    """Return ``(argument, leaf)``: one tensor, but for inputs that were not leaves and can be given as such again."""
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
    return flat.to(LOW_PRECISION_TO_ANCHOR.get(flat.dtype, flat.dtype), copy=True)


def to_float64(inputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return copies of ``inputs`` with every floating tensor in float64 and complex in complex128, layout kept."""
    return copy_inputs(inputs, transform=widen).arguments


def has_low_precision(tensors: list[torch.Tensor]) -> bool:
    """Say whether any of ``tensors`` has a dtype that a float64 run would refine."""
    return any(tensor.dtype in LOW_PRECISION_TO_ANCHOR for tensor in tensors)


def fresh_inputs(inputs: tuple[Any, ...], seed: int) -> tuple[Any, ...]:
    """Return inputs of the same layout with other values, on which the same program must run as well.

    Floats are a permutation of the old finite values, each drawn in by a random factor of 0.75 to 1: same magnitude and
    signs, never outside the old range, NaN and infinities in place; a mask of two values is only permuted. Integers and
    bools are permuted along their first dimension longer than one, so that index ranges, unique indices in a row and
    rows of a mask stay valid. A sorted vector stays sorted. Integers that share memory with another input stay.
    """
    generator = torch.Generator().manual_seed(seed)
    copied = copy_inputs(inputs)
    shared = _shared_storages(copied.arguments)
    renewed: set[int] = set()
    with torch.no_grad():
        for _, tensor in copied.named:
            storage = id(tensor.untyped_storage()) if is_plainly_strided(tensor) else None
            if storage is None or (storage in shared and not tensor.is_floating_point()) or id(tensor) in renewed:
                continue
            renewed.add(id(tensor))
            _renew(tensor, generator)
    return copied.arguments


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
