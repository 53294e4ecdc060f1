"""Give one test PyTorch as if it were alone: fresh caches, cleared counters, a seed, and everything put back.

What a test leaves changed is restored and named. Nothing here deletes a folder; folders belong to who created them.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pytest_regional._torch import state
from pytest_regional._torch.portable_artifacts import forget_recorded

from .cuda_state import gpu_isolated
from .left_running import left_running, threads

#: Environment variables whose values are cache folders: ours to set, never a leak.
CACHE_VARIABLES = ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")

#: Environment variables that name a cache server, which other tests and machines write to.
SHARED_CACHE_VARIABLES = ("TORCHINDUCTOR_REDIS_HOST", "TORCHINDUCTOR_REDIS_URL")

_SHARED_CACHE_SETTINGS = {
    "torch._inductor.config": "fx_graph_remote_cache",
    "torch._functorch.config": "enable_remote_autograd_cache",
}

_UNTRACKED_ENVIRONMENT = frozenset({"PYTEST_CURRENT_TEST", "PYTEST_VERSION", *CACHE_VARIABLES})

# Written by PyTorch itself while it compiles (2.11 to 2.15), not by tests.
_UNTRACKED_CONFIG = frozenset({"torch._inductor.config.aot_inductor.output_path"})


@dataclass(frozen=True)
class Leak:
    """One thing that a test left changed; ``put_back`` is False where only its name could be noted."""

    name: str
    before: Any
    after: Any
    put_back: bool = True

    def __str__(self) -> str:
        return f"{self.name}: {_short(self.before)} -> {_short(self.after)}"


@dataclass(frozen=True)
class Snapshot:
    """The process-wide state that a test may disturb."""

    config: Mapping[str, Mapping[str, Any]]
    environment: Mapping[str, str]
    torch_state: Mapping[str, Any]

    @staticmethod
    def take() -> Snapshot:
        """Read the state now."""
        config = {name: state.config_values(name) for name in state.CONFIG_MODULES}
        return Snapshot(config, dict(os.environ), _torch_state())

    def leaks(self) -> tuple[Leak, ...]:
        """Return what differs now from this snapshot, by name."""
        now = Snapshot.take()
        leaks = []
        for module, before in self.config.items():
            leaks += _differences(before, now.config[module], f"{module}.")
        # Variables that start so are how PyTorch talks to its own child processes and generated code.
        internal = frozenset(name for name in {*self.environment, *now.environment} if name.startswith("_TORCH"))
        leaks += _differences(
            self.environment, now.environment, "environment variable ", _UNTRACKED_ENVIRONMENT | internal
        )
        leaks += _differences(self.torch_state, now.torch_state, "")
        return tuple(leak for leak in leaks if leak.name not in _UNTRACKED_CONFIG)

    def restore(self) -> tuple[Leak, ...]:
        """Put this snapshot's state back; return what had to be changed."""
        leaks = self.leaks()
        for leak in leaks:
            self._restore_one(leak)
        return tuple(leak for leak in leaks if not _means_the_same(leak.before, leak.after))

    def _restore_one(self, leak: Leak) -> None:
        for module in self.config:
            if leak.name.startswith(f"{module}."):
                state.set_config(module, leak.name[len(module) + 1 :], leak.before)
                return
        if leak.name.startswith("environment variable "):
            _set_environment(leak.name.removeprefix("environment variable "), leak.before)
            return
        _STATE[leak.name][1](leak.before)


class _Missing:
    def __repr__(self) -> str:
        return "(not set)"


MISSING = _Missing()


def _differences(
    before: Mapping[str, Any], after: Mapping[str, Any], prefix: str, ignored: frozenset[str] = frozenset()
) -> list[Leak]:
    return [
        Leak(f"{prefix}{key}", before.get(key, MISSING), after.get(key, MISSING))
        for key in sorted({*before, *after} - ignored)
        if not _same(before.get(key, MISSING), after.get(key, MISSING))
    ]


def _same(before: Any, after: Any) -> bool:
    if before is after:
        return True
    return type(before) is type(after) and bool(before == after)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _set_environment(name: str, value: Any) -> None:
    if value is MISSING:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def _set_deterministic(value: tuple[bool, bool]) -> None:
    import torch

    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _flushes_subnormals() -> bool:
    """Say whether this thread's floating point arithmetic takes numbers too small to be normal for zero.

    A library that was linked with ``-funsafe-math-optimizations`` by a compiler older than GCC 13 begins so when it is
    loaded (https://gcc.gnu.org/gcc-13/changes.html), as kernels of ``cpp.enable_unsafe_math_opt_flag`` are.
    """
    smallest = sys.float_info.min
    return smallest / 2 == 0


def _set_default_device(value: Any) -> None:
    import torch

    torch.set_default_device(None if str(value) == "cpu" else value)


def _read(name: str) -> Any:
    def read() -> Any:
        import torch

        return getattr(torch, name)()

    return read


def _write(name: str) -> Any:
    def write(value: Any) -> None:
        import torch

        getattr(torch, name)(value)

    return write


class Precision(NamedTuple):
    """The precision of float32 products: what ``torch.get_float32_matmul_precision`` says, and what backends have."""

    everywhere: str
    cuda: str
    mkldnn: str


def _precision() -> Precision:
    import torch

    backends = torch.backends
    try:
        everywhere = torch.get_float32_matmul_precision()
    except RuntimeError:  # backends were set apart, so that there is no one answer
        everywhere = "differs"
    return Precision(everywhere, backends.cuda.matmul.fp32_precision, backends.mkldnn.matmul.fp32_precision)


def _set_precision(value: Precision) -> None:
    import torch

    if value.everywhere != "differs":
        torch.set_float32_matmul_precision(value.everywhere)
    torch.backends.cuda.matmul.fp32_precision = value.cuda
    torch.backends.mkldnn.matmul.fp32_precision = value.mkldnn


def _means_the_same(before: Any, after: Any) -> bool:
    """Tell a precision that was put back: PyTorch leaves "ieee" where "none" was, which enters cache keys."""
    if not isinstance(before, Precision) or not isinstance(after, Precision):
        return False
    return before == Precision(*(part if part != "ieee" else "none" for part in after))


def _working_folder() -> str:
    try:
        return os.getcwd()
    except FileNotFoundError:  # deleted under our feet
        return "(deleted)"


_STATE: dict[str, tuple[Any, Any]] = {
    "working folder": (_working_folder, os.chdir),
    "compiler stance": (state.compiler_stance, state.set_compiler_stance),
    "default dtype": (_read("get_default_dtype"), _write("set_default_dtype")),
    "default device": (_read("get_default_device"), _set_default_device),
    "grad mode": (_read("is_grad_enabled"), lambda value: _write("set_grad_enabled")(value)),
    "float32 matmul precision": (_precision, _set_precision),
    "flushing of subnormal numbers": (_flushes_subnormals, _write("set_flush_denormal")),
    "number of threads": (_read("get_num_threads"), _write("set_num_threads")),
    "deterministic algorithms": (
        lambda: (
            _read("are_deterministic_algorithms_enabled")(),
            _read("is_deterministic_algorithms_warn_only_enabled")(),
        ),
        _set_deterministic,
    ),
}


def _torch_state() -> dict[str, Any]:
    return {name: read() for name, (read, _) in _STATE.items()}


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and torch's generators (all devices)."""
    import numpy

    from pytest_regional.harness.seeding import seed_torch

    random.seed(seed)
    numpy.random.seed(seed % 2**32)
    seed_torch(seed)


def forget(*, counters: bool = True) -> None:
    """Drop everything compiled in this process, as if it had just started; files on disk stay."""
    state.reset_dynamo()
    state.clear_inductor_caches()
    forget_recorded()
    if counters:
        state.clear_compile_counters()


@contextlib.contextmanager
def cache_folder(folder: Path) -> Iterator[Path]:
    """Point every compiler cache into ``folder`` while the context lasts."""
    folder.mkdir(parents=True, exist_ok=True)
    values = {"TORCHINDUCTOR_CACHE_DIR": str(folder), "TRITON_CACHE_DIR": str(folder / "triton")}
    saved = {name: os.environ.get(name, MISSING) for name in values}
    os.environ.update(values)
    try:
        yield folder
    finally:
        for name, value in saved.items():
            _set_environment(name, value)


def clear_folder(folder: Path, *, keep_code: bool = False) -> None:
    """Empty a folder that this harness owns (the folder itself stays).

    Args:
        folder: the folder.
        keep_code: leave files of generated code and compiled kernels, whose names are hashes of their contents: no
            lookup finds them, but what generates the same code again need not build it.
    """
    folder.mkdir(parents=True, exist_ok=True)  # the test may have removed it
    for entry in folder.iterdir():
        if keep_code and (len(entry.name) == 2 or entry.name in _CODE_FOLDERS):
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


#: Beside folders of two letters, which are the beginning of a hash, as Inductor calls them (2.11 to 2.15).
_CODE_FOLDERS = ("precompiled_headers", "triton", "locks")


@contextlib.contextmanager
def no_shared_cache() -> Iterator[None]:
    """Leave caches on servers alone while the context lasts; what is set inside counts."""
    saved = {name: os.environ.pop(name, MISSING) for name in SHARED_CACHE_VARIABLES}
    try:
        with contextlib.ExitStack() as stack:
            for module, setting in _SHARED_CACHE_SETTINGS.items():
                if state.config_values(module)[setting]:
                    stack.enter_context(state.patched_config(module, {setting: False}))
            yield
    finally:
        for name, value in saved.items():
            _set_environment(name, value)


@dataclass
class Isolation:
    """The isolation of one test; ``leaks`` is filled when it ends."""

    folder: Path
    seed: int
    leaks: tuple[Leak, ...] = ()
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)


@contextlib.contextmanager
def isolated(folder: Path, seed: int, *, shared_cache: bool = False) -> Iterator[Isolation]:
    """Isolate what runs inside: see the module's docstring.

    Args:
        folder: where this test's compiler caches go; created when missing, never deleted.
        seed: for Python's, NumPy's and torch's generators.
        shared_cache: whether a cache on a server that the environment names may be used.
    """
    isolation = Isolation(folder, seed)
    with gpu_isolated(), cache_folder(folder), contextlib.nullcontext() if shared_cache else no_shared_cache():
        forget()
        random_state = _random_state()
        snapshot, running = Snapshot.take(), threads()
        seed_everything(seed)
        try:
            yield isolation
        finally:
            left = (Leak(f"thread {name}", "not there", "running", put_back=False) for name in left_running(running))
            isolation.leaks = (*snapshot.restore(), *left)
            forget()
            _restore_random_state(random_state)


def _random_state() -> tuple[Any, Any, Any]:
    import numpy
    import torch

    return random.getstate(), numpy.random.get_state(), torch.get_rng_state()


def _restore_random_state(saved: tuple[Any, Any, Any]) -> None:
    import numpy
    import torch

    random.setstate(saved[0])
    numpy.random.set_state(saved[1])
    torch.set_rng_state(saved[2])
