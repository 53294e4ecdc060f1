"""What is registered for operators that are not torch's: schemas, Python kernels, derivatives, decompositions."""

from __future__ import annotations

import functools
import hashlib
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_regional._torch import symbol
from pytest_regional._torch.config import inductor_config
from pytest_regional._torch.cpp import torch_headers
from pytest_regional._torch.operators import is_op_overload, is_op_packet
from pytest_regional._torch.process_state import kernels_of_operators


@functools.cache
def torch_folder() -> str:
    """Return the directory of the installed torch, with a separator at its end."""
    return str(torch_headers().parent) + "/"


def is_torchs_file(file: str) -> bool:
    """Return whether ``file`` registers for torch itself; ``torch.library`` registers for its callers."""
    inside = file.removeprefix(torch_folder()) if file.startswith(torch_folder()) else ""
    return bool(inside) and inside != "library.py" and not inside.startswith("_library/")


@dataclass(frozen=True)
class Kernel:
    """A kernel of an operator: its dispatch key, the file that registered it, and whether another one replaced it."""

    key: str
    file: str
    replaced: bool

    @property
    def is_python(self) -> bool:
        """Whether it is a Python function."""
        return self.file.endswith(".py")


_KERNEL = re.compile(r"^(\w+)(?:\[alias\])?( \(inactive\))?: registered at (.*):\d+ ::", re.MULTILINE)


def _dump(name: str) -> str:
    """Return what is registered for ``namespace::name.overload``: ``torch._C._dispatch_dump`` (2.11 to 2.15)."""
    return str(symbol("torch._C", "_dispatch_dump")(name))


def kernels_of(name: str) -> list[Kernel]:
    """Return the kernels of the operator ``namespace::name.overload``."""
    return [Kernel(key, file, bool(replaced)) for key, replaced, file in _KERNEL.findall(_dump(name))]


def is_torchs_kernel(entry: str) -> bool:
    """Return whether torch itself registered ``aten/addr/FuncTorchBatched``: it does so at the first ``vmap``."""
    operator, _, key = entry.rpartition("/")
    kernels = kernels_of(operator.replace("/", "::"))
    return any(each.key == key and not each.replaced and is_torchs_file(each.file) for each in kernels)


_torchs: set[str] = set()


def is_torchs_operator(name: str) -> bool:
    """Return whether torch itself defines the schema of an operator, whatever its namespace is."""
    if name not in _torchs:
        file, custom = _defined_in(name), custom_operator(name)
        made_here = custom is not None and is_torchs_file(custom._init_fn.__code__.co_filename)
        if not (made_here or is_torchs_file(file) or file.startswith(_built_in())):
            return False
        _torchs.add(name)
    return True


def _defined_in(name: str) -> str:
    found = re.search(r"^debug: registered at (.*):\d+$", _dump(name), re.MULTILINE)
    return found[1] if found else "unknown"


@functools.cache
def _built_in() -> str:
    """Return the directory in which torch was built."""
    return _defined_in("aten::mm").partition("build/aten/")[0]


def overloads_of(target: Any) -> list[Any]:
    """Return an operator's overloads, for one of them itself, for anything else none (2.11 to 2.15)."""
    if is_op_overload(target):
        return [target]
    return [getattr(target, name) for name in target.overloads()] if is_op_packet(target) else []


#: Keys of kernels that run below tracing, and so when a compiled program runs.
_BACKENDS = (
    "CPU",
    "CUDA",
    "HIP",
    "XPU",
    "MPS",
    "Meta",
    "Sparse",
    "Quantized",
    "Mkldnn",
    "Nested",
    "PrivateUse1",
    "Lazy",
)


def runs_while_traced(key: str) -> bool:
    """Return whether a kernel for ``key`` runs while a program is traced, so that the trace has what it does."""
    return not key.startswith((*_BACKENDS, "CompositeExplicitAutograd", "BackendSelect"))


def replaced_kernels() -> Iterator[tuple[str, Kernel]]:
    """Yield ATen's operators for which somebody else registered a kernel in Python that tracing calls."""
    global _known
    impls = kernels_of_operators()
    found: set[str] = set()
    for entry in impls - _known:
        namespace, name, key = entry.split("/")
        operator = f"{namespace}::{name}"
        if namespace == "aten" and runs_while_traced(key) and is_torchs_operator(operator):
            kernels = [each for each in kernels_of(operator) if each.is_python and runs_while_traced(each.key)]
            foreign = [(operator, each) for each in kernels if not is_torchs_file(each.file)]
            yield from foreign
            found |= {entry} if foreign else set()
    _known |= impls - found


_known: frozenset[str] = frozenset()


def custom_operator(name: str) -> Any:
    """Return the ``CustomOpDef`` that ``torch.library.custom_op`` made of an operator, or None (2.11 to 2.15)."""
    return symbol("torch._library.custom_ops", "OPDEFS").get(name)


def is_custom_operator(value: Any) -> bool:
    """Return whether ``value`` is what ``torch.library.custom_op`` returns (2.11 to 2.15)."""
    return isinstance(value, symbol("torch._library.custom_ops", "CustomOpDef"))


def overload_of(definition: Any) -> Any:
    """Return the overload that a ``CustomOpDef`` defines (2.11 to 2.15)."""
    return definition._opoverload


#: What a ``CustomOpDef`` calls while a program is traced (2.11 to 2.15); its kernels run later.
_TRACED = ("_abstract_fn", "_setup_context_fn", "_backward_fn", "_torch_dispatch_fns", "_vmap_fn", "_autocast_dtype")


def traced_parts(definition: Any) -> dict[str, Any]:
    """Return the functions of a ``CustomOpDef`` that tracing calls, by their names there."""
    return {name: getattr(definition, name, None) for name in _TRACED}


def registered_beside(name: str) -> dict[str, Any]:
    """Return what ``torch.library`` keeps of an operator besides kernels (``simple_registry``, 2.11 to 2.15)."""
    entry = symbol("torch._library.simple_registry", "singleton").get(name)
    if entry is None:
        return {}
    fake = entry.fake_impl.kernels[-1].func if entry.fake_impl.kernels else None
    return {"fake": fake, "dispatch rules": dict(entry.torch_dispatch_rules._data)}


def derivative_of(op: Any) -> tuple[Any, Any] | None:
    """Return forward and backward that ``torch.library.register_autograd`` made for an overload last, or None.

    It makes a class of each derivative, which only the dispatcher refers to (2.11 to 2.15).
    """
    name = f"GeneratedBackwardFor_{op._namespace}_{op._opname}_{op._overloadname}"
    made = [each for each in symbol("torch.autograd", "Function").__subclasses__() if each.__name__ == name]
    return (made[-1].forward, made[-1].backward) if made else None


def python_kernels(op: Any) -> Mapping[Any, Any]:
    """Return the functions registered with ``py_impl``: ``OperatorBase.py_kernels`` (2.11 to 2.15)."""
    kernels: Mapping[Any, Any] = op.py_kernels
    return kernels


def tags_of(op: Any) -> list[str]:
    """Return the tags of an overload, as text (2.11 to 2.15)."""
    return sorted(map(str, op.tags))


@functools.cache
def _digest(path: str, size: int, changed: int) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


def loaded_libraries() -> list[str]:
    """Return digests of the libraries that ``torch.ops.load_library`` loaded."""
    found = [(path, Path(path).stat()) for path in sorted(symbol("torch", "ops").loaded_libraries)]
    return [_digest(path, stat.st_size, stat.st_mtime_ns) for path, stat in found]


def foreign_decompositions() -> dict[str, Any]:
    """Return the decompositions that Inductor uses and that are not torch's, by operator.

    ``torch._inductor.decomposition`` (2.11 to 2.15), which no one has changed before its import. Inductor
    copies its table when it first compiles; what is put into the table afterwards is not used.
    """
    module = sys.modules.get("torch._inductor.decomposition")
    if module is None:
        return {}
    copied = getattr(module, "fast_random_decomps", None)
    info = getattr(copied, "cache_info", None)
    is_used = info is not None and info().currsize and not inductor_config().fallback_random
    table = copied() if copied is not None and is_used else module.decompositions
    return {str(op): function for op, function in table.items() if not _is_torchs_function(function)}


@functools.lru_cache(maxsize=8192)
def _is_torchs_function(function: Any) -> bool:
    function = getattr(function, "func", function)  # of a partial
    code = getattr(function, "__code__", None)
    if code is None:
        return str(getattr(function, "__module__", None) or type(function).__module__).partition(".")[0] == "torch"
    return bool(code.co_filename.startswith(torch_folder()))
