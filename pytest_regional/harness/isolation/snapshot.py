"""The state of the process before a test, and how the test changed it."""

from __future__ import annotations

import contextlib
import functools
import operator
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, NamedTuple

import torch

from pytest_regional._torch import MissingTorchSymbolError, config, distributed, dynamo, process_state, thread_state
from pytest_regional.harness.isolation import interpreter, watched
from pytest_regional.harness.isolation.watched import MISSING, Leak, Settings, State, Watched


class _Configuration(Settings):
    """A configuration module; a setting without a value has its default."""

    def __init__(self, module: str) -> None:
        super().__init__(
            f"{module}.",
            lambda: config.config_state(module),
            lambda name, value: config.set_config(module, name, value),
            # PyTorch itself writes it while it compiles (2.11 to 2.15), not tests.
            lambda name: (module, name) == (config.INDUCTOR, "aot_inductor.output_path"),
        )

    def differences(self, before: Mapping[str, Any]) -> Iterator[Leak]:
        # A read may set one to its default.
        for leak in super().differences(before):
            default = config.config_default(self.prefix[:-1], leak.name.removeprefix(self.prefix))
            was, now = (default if value is MISSING else value for value in (leak.before, leak.after))
            if not watched.same_value(was, now):
                yield Leak(leak.name, was, now)


def _same_all(one: tuple[Any, ...], other: tuple[Any, ...]) -> bool:
    return len(one) == len(other) and all(a is b for a, b in zip(one, other, strict=True))


def _autocast() -> tuple[Any, ...]:
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    each = [(torch.is_autocast_enabled(device), torch.get_autocast_dtype(device)) for device in _AUTOCAST_DEVICES]
    return (depth, torch.is_autocast_cache_enabled(), *each)


_AUTOCAST_DEVICES = ("cpu", "cuda")


def _set_autocast(wanted: tuple[Any, ...]) -> None:
    depth, cached, *each = wanted
    for device, (enabled, dtype) in zip(_AUTOCAST_DEVICES, each, strict=True):
        torch.set_autocast_enabled(device, enabled)
        torch.set_autocast_dtype(device, dtype)
    torch.set_autocast_cache_enabled(cached)
    while _autocast()[0] > depth:
        torch.autocast_decrement_nesting()
    torch.clear_autocast_cache()


def _stop_profiler(wanted: bool) -> None:
    if not wanted:
        thread_state.stop_profiler()


def _deterministic() -> tuple[bool, bool, bool]:
    enabled = torch.are_deterministic_algorithms_enabled()
    warns_only = torch.is_deterministic_algorithms_warn_only_enabled()
    return enabled, warns_only, torch.utils.deterministic.fill_uninitialized_memory


def _set_deterministic(value: tuple[bool, bool, bool]) -> None:
    enabled, warns_only, torch.utils.deterministic.fill_uninitialized_memory = value
    torch.use_deterministic_algorithms(enabled, warn_only=warns_only)


def _flushes_subnormals() -> bool:
    """Say whether this thread's floating point arithmetic flushes subnormal numbers to zero.

    Loading a library linked with ``-funsafe-math-optimizations`` by a compiler older than GCC 13 turns this on
    (https://gcc.gnu.org/gcc-13/changes.html), as for kernels with ``cpp.enable_unsafe_math_opt_flag``.
    """
    return sys.float_info.min / 2 == 0


class Precision(NamedTuple):
    """The precision of float32 products: ``torch.get_float32_matmul_precision``, and that of each backend."""

    everywhere: str
    cuda: str
    mkldnn: str


def _precision() -> Precision:
    backends = torch.backends
    try:
        everywhere = torch.get_float32_matmul_precision()
    except RuntimeError:  # the backends differ, so there is no single answer
        everywhere = "differs"
    return Precision(everywhere, backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision)


def _set_precision(value: Precision) -> None:
    if value.everywhere != "differs":
        torch.set_float32_matmul_precision(value.everywhere)
    torch.backends.cuda.matmul.fp32_precision = value.cuda
    torch.backends.mkldnn.matmul.fp32_precision = value.mkldnn


def _is_pytorchs_doing(leak: Leak) -> bool:
    """Say whether PyTorch itself left this change.

    After a precision is restored, it has "ieee" instead of "none", which enters cache keys. Inductor raises the
    recursion limit to 2,000 when it compiles, and ``torch.distributed`` sets ``sys.excepthook`` (2.13, 2.14).
    """
    if leak.name == "sys.excepthook":
        return str(getattr(leak.after, "__module__", "")).startswith("torch.distributed.")
    if leak.name == "recursion limit":
        return bool(leak.after[0] == 2000)
    if not isinstance(leak.after, Precision):
        return False
    return bool(leak.before == Precision(*(part if part != "ieee" else "none" for part in leak.after)))


def _set_backend(holder: dict[Any, Any], name: Any, backend: Any) -> None:
    watched.set_entry(holder, name, backend)
    if backend is MISSING:
        process_state.unregister_backend(name)


def _registries(*, backends: bool) -> Mapping[str, Any]:
    found = process_state.dictionaries(process_state.REGISTRIES)
    return {name: holder for name, holder in found.items() if name.endswith("_COMPILER_FNS") == backends}


def _patched() -> Mapping[str, Any]:
    found = {address: process_state.loaded(address) for address in process_state.PATCHED_HOLDERS}
    return {address: holder for address, holder in found.items() if holder is not None}


class _Kernels:
    """Operator kernels that existed before the test; kernels added by an import, or by torch itself, stay."""

    def read(self) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
        return watched.imported_modules(), process_state.kernels_of_operators(), process_state.operators_of_python()

    def _added(self, before: Any) -> frozenset[str]:
        imported, kernels, operators = self.read()
        if kernels is before[1] or imported is not before[0]:
            return frozenset()
        new_operators = {name.replace("::", "/") for name in operators - before[2]}
        added = [name for name in kernels - before[1] if name.rpartition("/")[0] not in new_operators]
        return frozenset(name for name in added if not process_state.is_torchs_kernel(name))

    def differences(self, before: Any) -> Iterator[Leak]:
        for name in sorted(self._added(before)):
            yield Leak(f"kernel of an operator {name}", "as found", "replaced")

    def restore(self, before: Any) -> None:
        process_state.remove_kernels(self._added(before))


#: The current thread's state; restored first, since it affects each call of torch.
MODES: tuple[Watched, ...] = (
    State(
        "Dynamo's frame evaluation",
        thread_state.eval_frame_callback,
        thread_state.set_eval_frame_callback,
        operator.is_,
    ),
    State("dispatch modes", thread_state.dispatch_modes, thread_state.set_dispatch_modes, _same_all),
    State("function modes", thread_state.function_modes, thread_state.set_function_modes, _same_all),
    State("torch function", thread_state.torch_function_state, thread_state.set_torch_function_state),
    State("functorch transforms", thread_state.functorch_depth, thread_state.set_functorch_depth),
    State("level of forward gradients", thread_state.forward_level, thread_state.set_forward_level),
    State("inference mode", torch.is_inference_mode_enabled, thread_state.set_inference_mode),
    State("grad mode", torch.is_grad_enabled, torch.set_grad_enabled),
    State("autograd's flags", thread_state.gradient_flags, thread_state.set_gradient_flags),
    State("autocast", _autocast, _set_autocast),
    State(
        "anomaly mode",
        lambda: (torch.is_anomaly_enabled(), torch.is_anomaly_check_nan_enabled()),
        lambda wanted: torch.set_anomaly_enabled(*wanted),
    ),
    State(
        "saved tensor hooks refused", thread_state.saved_tensor_hooks_refused, thread_state.refuse_saved_tensor_hooks
    ),
    State(
        "saved tensor hooks",
        thread_state.saved_tensor_hooks,
        thread_state.set_saved_tensor_hooks,
        thread_state.same_hooks,
    ),
    State("annotation", thread_state.graph_metadata, thread_state.set_graph_metadata),
)

CONFIGURATION: tuple[Watched, ...] = tuple(map(_Configuration, (*config.CONFIG_MODULES, *config.MORE_CONFIG_MODULES)))

SETTINGS: tuple[Watched, ...] = (
    State("compiler stance", dynamo.compiler_stance, dynamo.set_compiler_stance),
    State("default dtype", torch.get_default_dtype, torch.set_default_dtype),
    State(
        "default device",
        torch.get_default_device,
        lambda value: torch.set_default_device(None if str(value) == "cpu" else value),
    ),
    State("float32 matmul precision", _precision, _set_precision),
    State("number of threads", torch.get_num_threads, torch.set_num_threads),
    State("number of threads between operators", torch.get_num_interop_threads, None),
    State("deterministic algorithms", _deterministic, _set_deterministic),
    State("warning always", torch.is_warn_always_enabled, torch.set_warn_always),
    Settings("torch.backends.", process_state.backend_flags, process_state.set_backend_flag),
    Settings("", process_state.variables, process_state.set_variable),
)

#: All watched state, in the order of restoring.
WATCHED: tuple[Watched, ...] = (
    *interpreter.FIRST,
    *MODES,
    *CONFIGURATION,
    *interpreter.INTERPRETER,
    *SETTINGS,
    State("profiler", thread_state.profiler_runs, _stop_profiler),
    State("process groups", distributed.process_groups, distributed.destroy_process_groups, _same_all),
    State("logs chosen by torch._logging", process_state.log_state, process_state.set_log_state),
    State("flushing of subnormal numbers", _flushes_subnormals, torch.set_flush_denormal),
    watched.Contents(_patched, watched.is_a_tests, watched.set_attribute, watched.is_patched),
    watched.Contents(lambda: process_state.dictionaries(process_state.HOOKS), lambda *_: True, watched.set_entry),
    watched.Contents(
        lambda: {**_registries(backends=False), **process_state.decomposition_tables()},
        watched.is_a_tests,
        watched.set_entry,
    ),
    watched.Contents(
        lambda: _registries(backends=True),
        lambda name, *added: watched.is_a_tests(name, *added) and not process_state.is_an_entry_point(name),
        _set_backend,
    ),
    watched.Sets(process_state.function_ids),
    watched.Patterns(process_state.patterns),
    _Kernels(),
    # The thread's dispatch keys that remain when all modes are restored.
    State("dispatch keys", thread_state.dispatch_keys, thread_state.set_dispatch_keys),
)

#: State that a backend must restore before it returns from a compile.
WATCHED_WHILE_COMPILING: tuple[Watched, ...] = (
    *MODES,
    *CONFIGURATION,
    interpreter.ENVIRONMENT,
    interpreter.WORKING_DIRECTORY,
    *SETTINGS,
)


@dataclass(frozen=True, eq=False)
class Snapshot:
    """Some of the state of the process at one moment."""

    watched: Sequence[Watched]
    values: list[Any] = field(repr=False)  # the environment is among them

    @staticmethod
    def take(*, while_compiling: bool = False) -> Snapshot:
        """Read the current state; with ``while_compiling`` only the part that is quick to read."""
        rows = readable(while_compiling=while_compiling)
        return Snapshot(rows, [each.read() for each in rows])

    def leaks(self) -> tuple[Leak, ...]:
        """Return the differences between now and this snapshot."""
        pairs = zip(self.watched, self.values, strict=True)
        return tuple(leak for each, before in pairs for leak in each.differences(before))

    def restore(self) -> tuple[Leak, ...]:
        """Restore this snapshot's state; return what was changed, restored or not."""
        pairs = zip(self.watched, self.values, strict=True)
        leaks = [leak for each, before in pairs for leak in _restore(each, before)]
        return tuple(leak for leak in leaks if leak.unrestorable or not _is_pytorchs_doing(leak))

    @contextlib.contextmanager
    def without_imports(self) -> Iterator[None]:
        """While the context lasts, count what an import changes as changed before: it comes with the package."""
        if not _IMPORTS.snapshots:
            sys.meta_path.insert(0, _IMPORTS)
        _IMPORTS.snapshots.append(self)
        try:
            yield
        finally:
            _IMPORTS.snapshots.remove(self)
            if not _IMPORTS.snapshots and _IMPORTS in sys.meta_path:
                sys.meta_path.remove(_IMPORTS)


#: Their modules are imported late, and many; the rows know what these change.
_KNOWN = frozenset({"torch", "triton", "numpy", "sympy", "pytest_regional", *sys.stdlib_module_names})


class _Imports:
    """Stands before all finders of modules, and notices what an import changes: a package is imported once."""

    def __init__(self) -> None:
        self.snapshots: list[Snapshot] = []
        self._busy = False

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """Return what the other finders find; its loader tells of what it runs."""
        main = threading.current_thread() is threading.main_thread()
        if self._busy or not self.snapshots or not main or name.partition(".")[0] in _KNOWN:
            return None
        finders = (each for each in sys.meta_path if each is not self and hasattr(each, "find_spec"))
        spec = next(filter(None, (each.find_spec(name, path, target) for each in finders)), None)
        loader = getattr(spec, "loader", None)
        # Those of built-in and frozen modules are classes; one of several modules may be told already.
        if hasattr(type(loader), "exec_module") and "exec_module" not in getattr(
            loader, "__dict__", {"exec_module": 0}
        ):
            vars(loader)["exec_module"] = functools.partial(self._run, loader)
        return spec

    def _run(self, loader: Any, module: ModuleType) -> None:
        vars(loader).pop("exec_module", None)
        start, self._busy = Snapshot.take(), True
        try:
            type(loader).exec_module(loader, module)
        finally:
            self._busy = False
            now = Snapshot.take()
            rows = {id(row): change for row, *change in zip(start.watched, start.values, now.values, strict=True)}
            for snapshot in self.snapshots:
                pairs = zip(snapshot.watched, snapshot.values, strict=True)
                snapshot.values[:] = [watched.changed_alike(value, *rows[id(row)]) for row, value in pairs]


_IMPORTS = _Imports()


@functools.cache
def readable(*, while_compiling: bool) -> Sequence[Watched]:
    """Return the rows that this torch supports.

    If a private name moves, only its row is lost, and not every test; ``tests/attacks/test_leaks.py`` fails then.
    """
    found = []
    for row in WATCHED_WHILE_COMPILING if while_compiling else WATCHED:
        with contextlib.suppress(MissingTorchSymbolError):
            row.read()
            found.append(row)
    return found


def _restore(row: Watched, before: Any) -> list[Leak]:
    leaks = list(row.differences(before))
    if not leaks:
        return []
    try:
        row.restore(before)
    except Exception as error:  # noqa: BLE001 - whatever it is, the process is not what it was
        why = f"{type(error).__name__}: {error}"
        return [replace(leak, after=f"{leak.after!r} ({why})", restored=False, unrestorable=True) for leak in leaks]
    still = {leak.name for leak in row.differences(before)}
    return [replace(leak, restored=False, unrestorable=True) if leak.name in still else leak for leak in leaks]
